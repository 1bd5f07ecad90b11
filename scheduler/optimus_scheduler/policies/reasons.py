"""Why each job gets what it gets under the default policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.base import Grant
from optimus_scheduler.policies.candidates import Candidates
from optimus_scheduler.policies.contenders import FloatArray, IntArray
from optimus_scheduler.policies.hand_out import HandedOut
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import NOTHING, Allocation, Reason


class _Prospect(NamedTuple):
    """What a job could have beside what it got."""

    ideal: int
    """Row of the size that it would have, at the price of this round, if changing were free."""
    gain: float | None
    """Worth per share of what it got beyond the size below."""
    next_gain: float | None
    """... and of the best larger size."""
    next_row: int | None


def grants(
    outlooks: Sequence[Outlook], table: Candidates, result: HandedOut, demand: FloatArray, settings: Settings
) -> Mapping[str, Grant]:
    """The result in words."""
    explanation = _Explanation(table, result, demand, settings)
    return {one.id: explanation.grant(one, j) for j, one in enumerate(outlooks)}


class _Explanation:
    def __init__(self, table: Candidates, result: HandedOut, demand: FloatArray, settings: Settings) -> None:
        self._table, self._result, self._demand, self._settings = table, result, demand, settings
        # At the price of a share that this round came to, each job's best size if changing were free.
        self._ideal = first_of_largest(table.plain - result.price * table.cost, table)
        row = result.row[table.job]
        above = np.flatnonzero(np.arange(len(table)) > row)
        gains = np.full(len(table), -np.inf)
        shares = np.maximum(table.cost[above] - table.cost[row[above]], 1e-15)
        gains[above] = (table.plain[above] - table.plain[row[above]]) / shares
        self._next = first_of_largest(gains, table)
        self._next_gain = gains[self._next]

    def grant(self, outlook: Outlook, j: int) -> Grant:
        row = int(self._result.row[j])
        size = self._size(outlook, row)
        if size.is_empty:
            return Grant(NOTHING, Reason.WAITING_FOR_RESOURCES)
        ideal = self._size(outlook, int(self._ideal[j]))
        next_gain = float(self._next_gain[j]) if self._next_gain[j] > -np.inf else None
        reason = (
            self._to_keep(outlook, j, ideal, next_gain) if size == outlook.present else self._to_change(outlook, size)
        )
        below = max(row - 1, int(self._table.first[j]))
        plain, cost = self._table.plain, self._table.cost
        gain = (plain[row] - plain[below]) / max(cost[row] - cost[below], 1e-15)
        return Grant(size, reason, ideal if not ideal.is_empty else None, float(gain), next_gain)

    def _to_change(self, outlook: Outlook, size: Allocation) -> Reason:
        if outlook.is_held and size.workers + size.servers < outlook.present.workers + outlook.present.servers:
            return Reason.BETTER_USED_ELSEWHERE
        return Reason.LEARNING_SPEED if outlook.learning else Reason.GRANTED_MORE

    def _to_keep(self, outlook: Outlook, j: int, ideal: Allocation, next_gain: float | None) -> Reason:
        if not outlook.measured:
            return Reason.LEARNING_SPEED
        if next_gain is None:
            return Reason.AT_MAXIMUM
        if not ideal.is_empty and outlook.speedup(ideal, outlook.present) >= 1.0 + self._settings.least_speedup:
            return Reason.NOT_WORTH_RESCALING if self._fits(int(self._ideal[j]), j) else Reason.BETTER_USED_ELSEWHERE
        if next_gain <= 0:
            return Reason.NO_FURTHER_GAIN
        return Reason.UNCHANGED if self._fits(int(self._next[j]), j) else Reason.BETTER_USED_ELSEWHERE

    def _fits(self, row: int, j: int) -> bool:
        added = self._demand[row] - self._demand[int(self._result.row[j])]
        return bool((added <= self._result.room + 1e-9).all())

    def _size(self, outlook: Outlook, row: int) -> Allocation:
        return outlook.size(int(self._table.workers[row]), int(self._table.servers[row]))


def first_of_largest(values: FloatArray, table: Candidates) -> IntArray:
    """(n,) of each job the first of the rows with its largest value; `values` (k,)."""
    largest = np.maximum.reduceat(values, table.first[:-1])
    rows = np.flatnonzero(values == largest[table.job])
    job = table.job[rows]
    return np.asarray(rows[np.concatenate([[True], job[1:] != job[:-1]])])
