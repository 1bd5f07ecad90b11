"""Filling what is left of a cluster, a size at a time: always the one with the largest gain that fits.

Gains change only for the job that has just been given something, and room only shrinks: so sizes are sorted once, and
what turns out not to fit never needs to be looked at again.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from optimus_scheduler.allocate.optimus.candidates import Candidates
from optimus_scheduler.allocate.optimus.job_columns import BoolArray, FloatArray, IntArray

SLACK = 1e-9
"""By how much an amount may exceed the room: sums of fractions of cores are not exact."""
_SIFT = 32
"""Sizes in a row that do not fit before all that are left are looked at together."""


class RemainderFill:
    """Grows jobs from the rows `row` (n,) into `available` (r,)."""

    def __init__(
        self, candidates: Candidates, demand: FloatArray, row: IntArray, available: FloatArray, least_task_gain: float
    ) -> None:
        self.row, self.available = row, available
        self._candidates, self._demand, self._least_task_gain = candidates, demand, least_task_gain
        self._alive = np.zeros(len(candidates), dtype=bool)
        self._grown: dict[int, int] = {}
        """How often each job has been given something."""
        self._queue: IntArray = np.zeros(0, dtype=np.int64)
        """Rows of jobs that have not been given anything yet, the largest gain first ..."""
        self._regained: list[tuple[float, int, int]] = []
        """... and a heap of those of the others: (-gain, row, how often their job had been given something)."""

    def fill(self, above: IntArray) -> None:
        """Give out sizes of the rows `above`, each above its job's present one, as long as one fits."""
        above = above[self._fits(above)]
        above = above[self._rises(above)]
        self._alive[above] = True
        gains = self._gains(above)
        order = np.argsort(-gains, kind="stable")  # of equal gains the first row
        self._queue, self._queued_gains = above[order], gains[order]
        while (best := self._next()) is not None:
            self._give(best)

    def _next(self) -> int | None:
        """The row with the largest gain that fits."""
        at, misfits = 0, 0
        queue = self._queue
        while True:
            while at < len(queue) and int(self._candidates.job[queue[at]]) in self._grown:
                at += 1
            heap = self._regained
            while heap and self._grown[int(self._candidates.job[heap[0][1]])] != heap[0][2]:
                heappop(heap)
            if not heap and at >= len(queue):
                return None
            if heap and (at >= len(queue) or heap[0][:2] < (-float(self._queued_gains[at]), int(queue[at]))):
                row = heappop(heap)[1]
            else:
                row = int(queue[at])
                at += 1
            if (self._demand[row] - self._demand[self.row[self._candidates.job[row]]] <= self.available + SLACK).all():
                self._queue, self._queued_gains = queue[at:], self._queued_gains[at:]
                return row
            self._alive[row] = False
            misfits += 1
            if misfits >= _SIFT:
                fits = self._fits(queue[at:])
                self._alive[queue[at:][~fits]] = False
                self._queue = queue = queue[at:][fits]
                self._queued_gains = self._queued_gains[at:][fits]
                at, misfits = 0, 0

    def _give(self, row: int) -> None:
        """The job has this size now; what of its larger ones is left competes again."""
        candidates = self._candidates
        job = int(candidates.job[row])
        end = int(candidates.first[job + 1])
        rows = self._alive[row + 1 : end].nonzero()[0] + (row + 1)
        rows = rows[self._fits(rows)] if len(rows) else rows
        self.available = self.available - (self._demand[row] - self._demand[self.row[job]])
        self.row[job] = row
        self._alive[row:end] = False
        times = self._grown[job] = self._grown.get(job, 0) + 1
        rows = rows[self._rises(rows)] if len(rows) else rows
        if not len(rows):
            return
        self._alive[rows] = True
        for gain, other in zip(self._gains(rows).tolist(), rows.tolist(), strict=True):
            heappush(self._regained, (-gain, other, times))

    def _fits(self, rows: IntArray) -> BoolArray:
        now = self._now(rows)
        fits = np.ones(len(rows), dtype=bool)
        for amounts, available in zip(self._demand.T, self.available.tolist(), strict=True):
            fits &= amounts[rows] - amounts[now] <= available + SLACK
        return fits

    def _rises(self, rows: IntArray) -> BoolArray:
        """Whether a size is worth more than what its job has, and worth its tasks."""
        candidates, now = self._candidates, self._now(rows)
        more = candidates.worth[rows] > candidates.worth[now]
        return np.asarray(more & candidates.is_worthwhile(now, rows, self._least_task_gain))

    def _gains(self, rows: IntArray) -> FloatArray:
        return self._candidates.gain(self._now(rows), rows)

    def _now(self, rows: IntArray) -> IntArray:
        return self.row[self._candidates.job[rows]]
