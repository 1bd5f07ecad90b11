"""Greedy allocation by marginal gain (a fractional knapsack): the sizes of most worth together that fit.

Each job's worth is made concave by leaving out sizes that are never the best use of their cost; then steps from one
size to the next are taken in order of their gain, worth per share, as long as they fit. A job whose next step does not
fit competes on with those of its sizes that do. For one resource and steps of one task that is the optimum; for several
resources it is the usual greedy rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import BoolArray, FloatArray, IntArray, largest_first, within
from optimus_scheduler.allocate.optimus.candidates import Candidates
from optimus_scheduler.model import TOLERANCE

_SIFT = 32
"""Sizes in a row that do not fit before all that are left are looked at together."""


class RemainderFill:
    """Grows jobs from the rows `row` (n,) into `available` (r,), a size at a time: the largest gain that fits is next.

    Gains change only for the job that has just grown, and free capacity only shrinks. So sizes are sorted once, and a
    size that does not fit is never compared again.
    """

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
        above = above.compress(self._fits(above))
        if not len(above):  # in most rounds the cluster is full
            return
        above = above.compress(self._rises(above))
        self._alive[above] = True
        gains = self._gains(above)
        order = largest_first(gains)  # of equal gains the first row
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
            more = self._demand[row] - self._demand[self.row[self._candidates.job[row]]]
            if (more <= self.available + TOLERANCE).all():
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
            fits &= amounts[rows] - amounts[now] <= available + TOLERANCE
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


_FEW = 64
"""Rows that are sooner looked at one by one than all at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps up; s rows, largest gain first."""

    job: IntArray
    to: IntArray
    """Row of the candidates."""
    gain: FloatArray
    """Worth per share."""
    demand: FloatArray
    """(s, r) what the step adds of each resource."""

    def beyond(self, count: int) -> Steps:
        """Without the first ones."""
        return Steps(self.job[count:], self.to[count:], self.gain[count:], self.demand[count:])

    def only(self, which: BoolArray) -> Steps:
        """Those steps, in the same order."""
        job, to, gain = (each.compress(which) for each in (self.job, self.to, self.gain))
        return Steps(job, to, gain, self.demand.compress(which, axis=0))

    def merged(self, other: Steps) -> Steps:
        """These and the steps of other jobs."""
        both = zip(
            (self.job, self.to, self.gain, self.demand), (other.job, other.to, other.gain, other.demand), strict=True
        )
        job, to, gain, demand = (np.concatenate(pair) for pair in both)
        order = np.lexsort((to, -gain))  # of equal gains the first row
        return Steps(job[order], to[order], gain[order], demand.take(order, axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class GreedyResult:
    """The outcome."""

    row: IntArray
    """(n,) the candidate that each job gets."""
    available: FloatArray
    """(r,) what is left of each resource."""
    price: float
    """Gain of the last step that was taken; 0 if all were."""


def allocate_greedily(
    candidates: Candidates, demand: FloatArray, start: IntArray, available: FloatArray, least_task_gain: float
) -> GreedyResult:
    """Grow jobs from the rows `start` (n,), which are paid for, into `available` (r,). `demand` (k, r) of each row."""
    rows = (np.arange(len(candidates)) >= start[candidates.job]).nonzero()[0]
    steps = _steps(candidates, envelope(candidates, rows), demand, least_task_gain)
    row, available, price = _take(candidates, steps, demand, start.copy(), available, least_task_gain)
    row, available = _fill(candidates, demand, row, available, least_task_gain)
    return GreedyResult(row, available, price)


def envelope(candidates: Candidates, rows: IntArray) -> IntArray:
    """Those of `rows` (m,), of each job from where it starts up, that lie on the concave envelope of its worth, as long
    as it rises."""
    # A size that is worth no more than a cheaper one is never used; nor is one below the line between its neighbours.
    rows = rows.compress(_rises(candidates, rows))
    if len(rows) > _FEW:
        rows = rows.compress(~_below_way_to_last(candidates, rows))
    done: list[IntArray] = []
    while len(rows) > _FEW:
        job, cost, worth = candidates.job[rows], candidates.cost[rows], candidates.worth[rows]
        slope = (worth[1:] - worth[:-1]) / np.maximum(cost[1:] - cost[:-1], 1e-15)
        same = job[1:] == job[:-1]
        below = np.zeros(len(rows), dtype=bool)
        below[1:-1] = same[:-1] & same[1:] & (slope[:-1] <= slope[1:] * (1 + 1e-12))
        if not below.any():
            break
        # Only jobs that have lost a size are looked at again.
        again = np.zeros(len(candidates.first) - 1, dtype=bool)
        again[job.compress(below)] = True
        is_again = again[job]
        done.append(rows.compress(~is_again))
        rows = rows.compress(is_again & ~below)
    else:
        rows = _one_by_one(candidates, rows)
    return np.sort(np.concatenate([*done, rows])) if done else rows


def _below_way_to_last(candidates: Candidates, rows: IntArray) -> BoolArray:
    """Of `rows`, whose worth rises within each job, those that lie clearly below the line to the last one of their job
    from the row before it on the envelope.

    What a job has costs no change, so that its worth is a leap above all that it had to change to: one look at all rows
    under that leap spares a look for each of them. Those on the line, but for rounding, are left to the other looks.
    """
    job, cost, worth = candidates.job[rows], candidates.cost[rows], candidates.worth[rows]
    first = np.concatenate([[True], job[1:] != job[:-1]]).nonzero()[0]
    counts = np.diff(first, append=len(rows))
    last = (first + counts - 1).repeat(counts)
    places = np.arange(len(rows))
    slope = (worth[last] - worth) / np.maximum(cost[last] - cost, 1e-15)
    slope[last == places] = np.inf
    flattest = np.minimum.reduceat(slope, first).repeat(counts)
    before = np.maximum.reduceat(np.where(slope == flattest, places, 0), first).repeat(counts)
    return np.asarray((places > before) & (places < last) & (slope > flattest * _CLEARLY))


_CLEARLY = 1.0 + 1e-9
"""So many times as steep is no matter of rounding."""


def _one_by_one(candidates: Candidates, rows: IntArray) -> IntArray:
    """The same for few rows: each that comes throws out those before it that lie below the line to it."""
    kept: list[int] = []
    slopes: list[float] = []
    """From the row before, of the same job; infinite for its first."""
    jobs, costs, worths = candidates.job[rows].tolist(), candidates.cost[rows].tolist(), candidates.worth[rows].tolist()
    present, begin = -1, 0
    for at, (job, cost, worth) in enumerate(zip(jobs, costs, worths, strict=True)):
        if job != present:
            present, begin = job, len(kept)
        slope = math.inf
        while len(kept) > begin:
            before = kept[-1]
            slope = (worth - worths[before]) / max(cost - costs[before], 1e-15)
            if slopes[-1] > slope * (1 + 1e-12):
                break
            kept.pop()
            slopes.pop()
        kept.append(at)
        slopes.append(slope)
    return rows[kept]


def _rises(candidates: Candidates, rows: IntArray) -> BoolArray:
    """Rows that are worth more than every cheaper one of their job; the first always."""
    job, worth = candidates.job[rows], candidates.worth[rows]
    if not len(rows):
        return np.zeros(0, dtype=bool)
    is_first = np.concatenate([[True], job[1:] != job[:-1]])
    # A running maximum by job: lift each job above all before it.
    lifted = job * (2.0 * max(float(worth.max()), -float(worth.min())) + 1.0)
    lifted += worth
    highest = np.maximum.accumulate(lifted)
    result: BoolArray = is_first
    result[1:] |= lifted[1:] > highest[:-1]
    return result


def _steps(candidates: Candidates, rows: IntArray, demand: FloatArray, least_task_gain: float) -> Steps:
    job = candidates.job[rows]
    ups = (job[1:] == job[:-1]).nonzero()[0]
    low, high = rows[ups], rows[ups + 1]
    is_worth = candidates.is_worthwhile(low, high, least_task_gain)
    if not is_worth.all():
        on = _before_first(~is_worth, candidates.job[low])
        low, high = low.compress(on), high.compress(on)
    gain = candidates.gain(low, high)
    order = largest_first(gain)  # of equal gains the first row
    low, high = low[order], high[order]
    added = demand.take(high, axis=0)
    added -= demand.take(low, axis=0)
    return Steps(candidates.job[high], high, gain[order], added)


def _before_first(marked: BoolArray, job: IntArray) -> BoolArray:
    """Rows, in the order given, that come before the first marked one of their job."""
    first = np.full(int(job.max(initial=0)) + 1, len(job))
    np.minimum.at(first, job.compress(marked), marked.nonzero()[0])
    before: BoolArray = np.arange(len(job)) < first[job]
    return before


def _take(
    candidates: Candidates,
    steps: Steps,
    demand: FloatArray,
    row: IntArray,
    available: FloatArray,
    least_task_gain: float,
) -> tuple[IntArray, FloatArray, float]:
    """Take steps in order of gain. Of a job whose next one does not fit, those through sizes that fit are next."""
    price, some_left_out = 0.0, False
    is_cut = np.zeros(len(row), dtype=bool)
    """Jobs of which a step did not fit: what is left of their steps comes before it."""
    while len(steps.job):
        total = steps.demand.cumsum(axis=0)
        fits = within(total, available + TOLERANCE)
        count = len(steps.job) if fits.all() else int(np.argmin(fits))
        if count:
            np.maximum.at(row, steps.job[:count], steps.to[:count])
            available = available - total[count - 1]
            price = float(steps.gain[count - 1])
        steps = steps.beyond(count)
        misfits = ~within(steps.demand, available + TOLERANCE)
        if misfits.any():
            some_left_out = True
            is_cut[steps.job.compress(misfits)] = True
            steps = steps.only(_before_first(misfits, steps.job))
        is_out = is_cut.copy()
        is_out[steps.job] = False
        if is_out.any():
            is_cut[is_out] = False
            rows = _rows_that_fit(candidates, demand, row, available, is_out)
            if len(rows) > np.count_nonzero(is_out):  # else each keeps what it has: in a full cluster nothing fits
                steps = steps.merged(_steps(candidates, envelope(candidates, rows), demand, least_task_gain))
    return row, available, price if some_left_out else 0.0


def _rows_that_fit(
    candidates: Candidates, demand: FloatArray, row: IntArray, available: FloatArray, is_asked: BoolArray
) -> IntArray:
    """Of the jobs asked for, (n,), the rows that they have and those above that there is room for."""
    now = row[candidates.job]
    rows = (is_asked[candidates.job] & (np.arange(len(candidates)) >= now)).nonzero()[0]
    added = demand.take(rows, axis=0) - demand.take(now[rows], axis=0)
    return np.asarray(rows.compress(within(added, available + TOLERANCE)))


def _fill(
    candidates: Candidates, demand: FloatArray, row: IntArray, available: FloatArray, least_task_gain: float
) -> tuple[IntArray, FloatArray]:
    """Use what is left for sizes beside the envelopes, always the largest gain that fits.

    A size that does not fit at some point, or is not worth it beside what its job has then, is out for good.
    """
    is_above = np.arange(len(candidates)) > row[candidates.job]
    is_above &= candidates.worth > candidates.worth[row][candidates.job]
    above = is_above.nonzero()[0]
    if len(above):
        filling = RemainderFill(candidates, demand, row, available, least_task_gain)
        filling.fill(above)
        return filling.row, filling.available
    return row, available
