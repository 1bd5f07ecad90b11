"""Why each job gets what it gets under the default policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import repeat

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import BoolArray, FloatArray, IntArray, within
from optimus_scheduler.allocate.optimus.candidates import Candidates
from optimus_scheduler.allocate.optimus.greedy import GreedyResult
from optimus_scheduler.allocate.optimus.guarantees import overdue_seconds, present_rows, seconds_of_turn
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.allocate.policy import OTHERS_GIVE, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, TOLERANCE, Allocation, Reason
from optimus_scheduler.settings import Settings

_SAME_SHARE = 1e-12
"""Shares of the cluster that differ by less are the same."""


def grants(
    outlooks: Sequence[Outlook],
    table: Candidates,
    result: GreedyResult,
    demand: FloatArray,
    available: FloatArray,
    leaving: FloatArray,
    settings: Settings,
) -> Mapping[str, Grant]:
    """The result in words. `demand` (k, r) of each candidate, `available` (r,) to these jobs, `leaving` (r,): what will
    be so in a moment."""
    return _Explanation(outlooks, table, result, demand, available, leaving, settings).grants()


class _Explanation:
    def __init__(
        self,
        outlooks: Sequence[Outlook],
        table: Candidates,
        result: GreedyResult,
        demand: FloatArray,
        available: FloatArray,
        leaving: FloatArray,
        settings: Settings,
    ) -> None:
        self._jobs, self._table, self._result = JobColumns.of(outlooks), table, result
        self._demand, self._available, self._settings = demand, available, settings
        self._capacity = available + leaving
        # At the price of a share that this round came to, each job's best size if changing were free.
        self._ideal = first_of_largest(table.plain - result.price * table.cost, table)
        row = result.row[table.job]
        above = (np.arange(len(table)) > row).nonzero()[0]
        now = row[above]
        gains = (table.plain[above] - table.plain[now]) / np.maximum(table.cost[above] - table.cost[now], 1e-15)
        self._above, self._gains = above, gains
        self._next, self._next_gain = self._of_those_in_the_cluster(*first_of_largest_among(above, gains, table))
        tasks = table.workers + table.servers
        ones = (tasks[above] == tasks[now] + 1).nonzero()[0]
        self._one_more = first_of_largest_among(above[ones], gains[ones], table)
        """(n,) the row of each job with one task more, the best of these, and what that task gains per share; the next
        size (`_next`) may be several tasks away."""
        self._least = np.minimum(result.row, table.first[:-1] + 1)
        """(n,) the row of each job's minimum; that of nothing for a job that gets nothing."""
        below = of_smaller_share(result.row, table)
        shares = np.maximum(table.cost[result.row] - table.cost[below], 1e-15)
        self._last_gain = below, (table.plain[result.row] - table.plain[below]) / shares
        """(n,) the row that each job would have with a task less, and what that task gains per share."""

    def _of_those_in_the_cluster(self, rows: IntArray, gain: FloatArray) -> tuple[IntArray, FloatArray]:
        """(n,) the rows of the next sizes; where the whole cluster has no room for that, the best of others that are
        faster, too."""
        beyond = ~within(self._demand.take(rows, axis=0), self._capacity + TOLERANCE)
        if not beyond.any():
            return rows, gain
        is_asked = beyond[self._table.job[self._above]]
        above, gains = self._above.compress(is_asked), self._gains.compress(is_asked)
        fits = within(self._demand.take(above, axis=0), self._capacity + TOLERANCE)
        others, theirs = first_of_largest_among(above.compress(fits), gains.compress(fits), self._table)
        is_found = beyond & np.isfinite(theirs) & self._is_faster(others)
        return np.where(is_found, others, rows), np.where(is_found, theirs, gain)

    def grants(self) -> dict[str, Grant]:
        """By job id."""
        table, row, jobs = self._table, self._result.row, self._jobs
        below, gain = self._last_gain
        workers, servers = table.workers[row], table.servers[row]
        sizes = [one.present for one in jobs]
        moves = jobs.column("changes_type") > 0
        changes = (workers != jobs.pairs("")[:, 0]) | (servers != jobs.pairs("")[:, 1]) | moves
        for j, size in self._sizes(changes.nonzero()[0], row):  # most keep what they have, the very same object
            sizes[j] = size
        better = self._is_faster(self._ideal) & self._fits(self._ideal)
        wanted = np.where(better, self._ideal, self._next_that_fits())
        reasons = self._to_keep(wanted)
        if changes.any():
            reasons = np.where(changes, self._to_change(moves), reasons)
        best: list[Allocation | None] = [None] * len(jobs)
        for j, size in self._sizes((_WANTS_ANOTHER[reasons] & ~changes).nonzero()[0], wanted):
            best[j] = size
        # For no larger share (a worker in the place of a server) there is no gain per share.
        one_more, next_gains = self._one_more
        next_gain = _where(table.cost[one_more] - table.cost[row] > _SAME_SHARE, next_gains)
        gains = _where((below >= self._least) & (table.cost[row] - table.cost[below] > _SAME_SHARE), gain)
        numbers = reasons.tolist()
        words, notes = map(_REASONS.__getitem__, numbers), map(_NOTES.__getitem__, numbers)
        rest = (repeat(each, len(jobs)) for each in _UNSAID)
        columns = sizes, words, best, gains, next_gain, notes, *rest
        granted = dict(zip(jobs.ids, map(_grant, zip(*columns, strict=True)), strict=True))
        waiting = (workers + servers == 0).nonzero()[0]
        for j, grant in zip(waiting.tolist(), self._waiting(waiting) if len(waiting) else (), strict=True):
            granted[jobs.ids[j]] = grant
        return granted

    def _waiting(self, waiting: IntArray) -> Iterable[Grant]:
        """(m,) of jobs that get nothing."""
        table, least = self._table, self._demand[self._least].sum(axis=0)
        fits = within(self._demand[table.first[waiting] + 1] + least, self._available + TOLERANCE)
        if (overdue_seconds(self._jobs, table.least_speed, self._settings)[waiting] > 0).any():
            # Where one keeps others from starting, these do not wait for what makes better use of the room.
            turn = seconds_of_turn(self._jobs, table, self._demand, self._available, self._settings)
            return [_GOES_FIRST if each else _WAITS for each in (turn[waiting] > 0).tolist()]
        if not fits.any():
            return repeat(_WAITS, len(waiting))
        grown = ((self._least > table.first[:-1]) & (self._result.row > self._least)).nonzero()[0]
        better = _WAITS._replace(grown=tuple(map(self._jobs.ids.__getitem__, grown.tolist())))
        return [better if each else _WAITS for each in fits.tolist()]

    def _sizes(self, jobs: IntArray, rows: IntArray) -> Iterator[tuple[int, Allocation]]:
        """Each of `jobs` (m,) with the size of its row in `rows` (n,)."""
        asked = rows[jobs]
        counts = zip(
            jobs.tolist(), self._table.workers[asked].tolist(), self._table.servers[asked].tolist(), strict=True
        )
        return ((j, self._jobs[j].size(workers, servers)) for j, workers, servers in counts)

    def _to_change(self, moves: BoolArray) -> IntArray:
        """(n,) the reason for another size, as a number in `_REASONS`; `moves` (n,) to another GPU type."""
        jobs, row = self._jobs, self._result.row
        tasks = self._table.workers[row] + self._table.servers[row]
        is_less = jobs.has_tasks & ~moves & (tasks < jobs.column("workers") + jobs.column("servers"))
        has_sizes = ~within(jobs.pairs("most_"), jobs.pairs("least_"))
        grows = np.where((jobs.column("learning") > 0) & has_sizes, _LEARNING, _MORE)  # a job of one size learns none
        less = self._why_not(present_rows(jobs, self._table), kept=_NO_GAIN)
        less[less == _EXCHANGE] = _ELSEWHERE
        return np.where(is_less, less, grows)

    def _to_keep(self, wanted: IntArray) -> IntArray:
        """(n,) ... and for the present one, when `wanted` (n,) are the rows of the next better size of each."""
        table, jobs, row = self._table, self._jobs, self._result.row
        is_faster = self._is_faster(wanted)
        is_change_too_dear = is_faster & (table.worth[wanted] <= table.worth[row])
        reasons = self._why_not(wanted, kept=np.where(is_change_too_dear, _NOT_WORTH, _UNCHANGED))
        # The first that applies counts, and so is written last.
        is_little = (self._next_gain <= 0) | ~table.is_worthwhile(row, self._next, self._settings.least_task_gain)
        reasons[(reasons == _EXCHANGE) & ~is_faster] = _UNCHANGED
        reasons[is_little & ~is_faster] = _NO_GAIN
        reasons[np.isneginf(self._next_gain)] = _NO_GAIN
        reasons[jobs.column("measured") == 0] = _LEARNING
        most_workers, most_servers = jobs.pairs("most_").T
        reasons[(table.workers[row] == most_workers) & (table.servers[row] == most_servers)] = _AT_MAXIMUM
        return reasons

    def _is_faster(self, rows: IntArray) -> BoolArray:
        """(n,) whether the size of `rows` (n,) makes each job so much faster that this is no noise."""
        table = self._table
        faster = table.plain[rows] >= (1.0 + self._settings.least_speedup) * table.plain[self._result.row]
        return np.asarray(faster & (table.workers[rows] + table.servers[rows] > 0))

    def _next_that_fits(self) -> IntArray:
        """(n,) the next size of each job; where there is no room for that, another that is faster and has room."""
        table, row, lacks = self._table, self._result.row, ~self._fits(self._next)
        if (self._result.available <= TOLERANCE).all():
            return self._next
        is_asked = lacks[table.job[self._above]]
        above, gains = self._above.compress(is_asked), self._gains.compress(is_asked)
        added = self._demand.take(above, axis=0) - self._demand.take(row[table.job[above]], axis=0)
        fits = within(added, self._result.available + TOLERANCE)
        found, gain = first_of_largest_among(above.compress(fits), gains.compress(fits), table)
        return np.where(lacks & np.isfinite(gain) & self._is_faster(found), found, self._next)

    def _fits(self, rows: IntArray) -> BoolArray:
        """(n,) whether each job could have the size of `rows` (n,) instead."""
        return within(self._demand.take(rows, axis=0) - self._has, self._result.available + TOLERANCE)

    def _why_not(self, wanted: IntArray, kept: IntArray | int) -> IntArray:
        """(n,) why jobs do not have the sizes of the rows `wanted` (n,); `kept` where there is room for that."""
        would_have = self._demand.take(wanted, axis=0)
        need = would_have - self._has - self._result.available - TOLERANCE
        # The first that applies counts, and so is written last.
        reasons = np.where(within(need, self._surplus_of_lower_gain), _EXCHANGE, _ELSEWHERE)
        reasons[~within(need, self._surplus.sum(axis=0) - self._surplus)] = _MINIMA
        reasons[~within(would_have, self._capacity + TOLERANCE)] = _FULL
        return np.where(within(need, np.zeros(need.shape[1])), kept, reasons)

    @cached_property
    def _has(self) -> FloatArray:
        """(n, r) what each job gets."""
        return self._demand.take(self._result.row, axis=0)

    @cached_property
    def _surplus(self) -> FloatArray:
        """(n, r) ... beyond its minimum."""
        return self._has - self._demand.take(self._least, axis=0)

    @cached_property
    def _surplus_of_lower_gain(self) -> FloatArray:
        """(n, r) what jobs whose last task gains less than the next one of each job have beyond their minima."""
        surplus, (_, gain) = self._surplus, self._last_gain
        order = gain.argsort(kind="stable")
        total = np.concatenate([np.zeros((1, surplus.shape[1])), surplus[order].cumsum(axis=0)])
        lower = total[gain[order].searchsorted(self._next_gain, side="left")]
        return np.asarray(lower - np.where((gain < self._next_gain)[:, None], surplus, 0.0))


_grant: Callable[[Iterable[object]], Grant] = partial(tuple.__new__, Grant)
"""What `_make` of a named tuple does, in half its time."""
_UNSAID = Grant(NOTHING, Reason.UNCHANGED)[Grant._fields.index("note") + 1 :]
"""What most grants have after the note."""
_WAITS = Grant(NOTHING, Reason.WAITING_FOR_RESOURCES)
_GOES_FIRST = _WAITS._replace(goes_first=True)
_REASONS = (
    Reason.UNCHANGED,
    Reason.LEARNING_SPEED,
    Reason.AT_MAXIMUM,
    Reason.NOT_WORTH_RESCALING,
    Reason.BETTER_USED_ELSEWHERE,
    Reason.NO_FURTHER_GAIN,
    Reason.GRANTED_MORE,
    Reason.CLUSTER_FULL,
    Reason.MINIMUM_ELSEWHERE,
    Reason.NOT_WORTH_RESCALING,
)
_UNCHANGED, _LEARNING, _AT_MAXIMUM, _NOT_WORTH, _ELSEWHERE, _NO_GAIN, _MORE, _FULL, _MINIMA, _EXCHANGE = range(
    len(_REASONS)
)
_NOTES = tuple(OTHERS_GIVE if number == _EXCHANGE else None for number in range(len(_REASONS)))
_WANTS_ANOTHER = np.isin(range(len(_REASONS)), (_NOT_WORTH, _ELSEWHERE, _FULL, _MINIMA, _EXCHANGE))
"""Whether it is a reason of jobs that would be faster with another size, by its number."""


def _where(is_there: BoolArray, numbers: FloatArray) -> list[float | None]:
    """(n,) the numbers, None where there is none."""
    found: list[float | None] = numbers.tolist()
    for j in (~is_there).nonzero()[0].tolist():
        found[j] = None
    return found


def of_smaller_share(rows: IntArray, table: Candidates) -> IntArray:
    """(n,) the last row of each job before its row in `rows` (n,) that takes a smaller share of the cluster; that of
    nothing where none does. A worker in the place of a server may take the same."""
    nothing = table.first[:-1]
    below = np.maximum(rows - 1, nothing)
    while (same := (below > nothing) & (table.cost[rows] - table.cost[below] <= _SAME_SHARE)).any():
        below = below - same
    return below


def first_of_largest(values: FloatArray, table: Candidates) -> IntArray:
    """(n,) of each job the first of the rows with its largest value; `values` (k,)."""
    largest = np.maximum.reduceat(values, table.first[:-1])
    rows = (values == largest[table.job]).nonzero()[0]
    job = table.job[rows]
    return np.asarray(rows[np.concatenate([[True], job[1:] != job[:-1]])])


def first_of_largest_among(rows: IntArray, values: FloatArray, table: Candidates) -> tuple[IntArray, FloatArray]:
    """The same among `rows` (m,), which are sorted, with their `values` (m,); and (n,) the value of each. Of a job that
    has none of these it is the row of nothing, and no value is as low."""
    found, largest = table.first[:-1].copy(), np.full(len(table.first) - 1, -np.inf)
    if len(rows):
        job = table.job[rows]
        begin = np.concatenate([[True], job[1:] != job[:-1]]).nonzero()[0]
        largest[job[begin]] = np.maximum.reduceat(values, begin)
        equal = (values == largest[job]).nonzero()[0]
        job = job[equal]
        first = equal[np.concatenate([[True], job[1:] != job[:-1]])]
        found[table.job[rows[first]]] = rows[first]
    return found, largest
