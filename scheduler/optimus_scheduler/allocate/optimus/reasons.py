"""Why each job gets what it gets under the default policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np

from optimus_scheduler.allocate.optimus.candidates import Candidates
from optimus_scheduler.allocate.optimus.greedy import GreedyResult
from optimus_scheduler.allocate.optimus.job_columns import BoolArray, FloatArray, IntArray, JobColumns
from optimus_scheduler.allocate.policy import Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, Reason, gpu_type_of
from optimus_scheduler.settings import Settings


def grants(
    outlooks: Sequence[Outlook], table: Candidates, result: GreedyResult, demand: FloatArray, settings: Settings
) -> Mapping[str, Grant]:
    """The result in words."""
    return _Explanation(outlooks, table, result, demand, settings).grants()


class _Explanation:
    def __init__(
        self,
        outlooks: Sequence[Outlook],
        table: Candidates,
        result: GreedyResult,
        demand: FloatArray,
        settings: Settings,
    ) -> None:
        self._jobs, self._table, self._result = JobColumns.of(outlooks), table, result
        self._demand, self._settings = demand, settings
        # At the price of a share that this round came to, each job's best size if changing were free.
        self._ideal = first_of_largest(table.plain - result.price * table.cost, table)
        row = result.row[table.job]
        above = np.flatnonzero(np.arange(len(table)) > row)
        gains = np.full(len(table), -np.inf)
        shares = np.maximum(table.cost[above] - table.cost[row[above]], 1e-15)
        gains[above] = (table.plain[above] - table.plain[row[above]]) / shares
        self._next = first_of_largest(gains, table)
        self._next_gain = gains[self._next]

    def grants(self) -> dict[str, Grant]:
        """By job id."""
        table, row, jobs = self._table, self._result.row, self._jobs
        below = np.maximum(row - 1, table.first[:-1])
        gain = (table.plain[row] - table.plain[below]) / np.maximum(table.cost[row] - table.cost[below], 1e-15)
        workers, servers = table.workers[row], table.servers[row]
        sizes = [one.job.allocation for one in jobs]
        changes = (workers != jobs.pairs("")[:, 0]) | (servers != jobs.pairs("")[:, 1])
        changes |= [now != size.gpu_type for now, size in zip(self._gpu_types(), sizes, strict=True)]
        for j in np.flatnonzero(changes).tolist():  # most keep what they have, the very same object
            sizes[j] = self._size(j, row[j])
        reasons = np.where(changes, self._to_change(), self._to_keep())
        best: list[Allocation | None] = [None] * len(jobs)
        for j in np.flatnonzero(reasons == _NOT_WORTH).tolist():
            best[j] = self._size(j, self._ideal[j])
        next_gain = [each if each > -np.inf else None for each in self._next_gain.tolist()]
        words, notes = map(_REASONS.__getitem__, reasons.tolist()), repeat(None, len(jobs))
        columns = sizes, words, best, gain.tolist(), next_gain, notes
        granted = dict(zip(jobs.ids, map(Grant._make, zip(*columns, strict=True)), strict=True))
        for j in np.flatnonzero(workers + servers == 0).tolist():
            granted[jobs.ids[j]] = _WAITS
        return granted

    def _size(self, job: int, row: int) -> Allocation:
        return self._jobs[job].size(int(self._table.workers[row]), int(self._table.servers[row]))

    def _gpu_types(self) -> list[str | None]:
        """(n,) on which type each job's workers are from now on."""
        types = [gpu_type_of(asked) for asked in self._jobs.shapes.all]
        return [types[number] for number in self._jobs.worker_shape.tolist()]

    def _to_change(self) -> IntArray:
        """(n,) the reason for another size, as a number in `_REASONS`."""
        jobs, row = self._jobs, self._result.row
        tasks = self._table.workers[row] + self._table.servers[row]
        is_less = jobs.has_tasks & (tasks < jobs.column("workers") + jobs.column("servers"))
        grows = np.where(jobs.column("learning") > 0, _LEARNING, _MORE)
        return np.where(is_less, _ELSEWHERE, grows)

    def _to_keep(self) -> IntArray:
        """(n,) ... and for the present one."""
        table, row, ideal = self._table, self._result.row, self._ideal
        faster = table.plain[ideal] >= (1.0 + self._settings.least_speedup) * table.plain[row]
        faster &= table.workers[ideal] + table.servers[ideal] > 0
        # The first that applies counts, and so is written last.
        reasons = np.where(self._fits(self._next), _UNCHANGED, _ELSEWHERE)
        reasons[self._next_gain <= 0] = _NO_GAIN
        reasons = np.where(faster, np.where(self._fits(ideal), _NOT_WORTH, _ELSEWHERE), reasons)
        reasons[np.isneginf(self._next_gain)] = _AT_MAXIMUM
        reasons[self._jobs.column("measured") == 0] = _LEARNING
        return reasons

    def _fits(self, rows: IntArray) -> BoolArray:
        """(n,) whether each job could have the size of `rows` (n,) instead."""
        added = self._demand[rows] - self._demand[self._result.row]
        return np.asarray((added <= self._result.available + 1e-9).all(axis=1))


_WAITS = Grant(NOTHING, Reason.WAITING_FOR_RESOURCES)
_REASONS = (
    Reason.UNCHANGED,
    Reason.LEARNING_SPEED,
    Reason.AT_MAXIMUM,
    Reason.NOT_WORTH_RESCALING,
    Reason.BETTER_USED_ELSEWHERE,
    Reason.NO_FURTHER_GAIN,
    Reason.GRANTED_MORE,
)
_UNCHANGED, _LEARNING, _AT_MAXIMUM, _NOT_WORTH, _ELSEWHERE, _NO_GAIN, _MORE = range(len(_REASONS))


def first_of_largest(values: FloatArray, table: Candidates) -> IntArray:
    """(n,) of each job the first of the rows with its largest value; `values` (k,)."""
    largest = np.maximum.reduceat(values, table.first[:-1])
    rows = np.flatnonzero(values == largest[table.job])
    job = table.job[rows]
    return np.asarray(rows[np.concatenate([[True], job[1:] != job[:-1]])])
