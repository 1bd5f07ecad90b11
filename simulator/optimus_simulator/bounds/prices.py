"""The cheapest way through a job, when the cluster has a price at every time.

Prices are per second of the whole of one resource, constant in each interval of a grid. A job's bill until C is the
least that it pays to be done at C; by weak duality it is no less than θ - Σ L·max(θ·v - price of the size) for every
price θ of the whole job, the sum over the intervals before C with lengths L. So what is said here holds for every θ,
however it was found. docs/bounds.md has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_simulator.bounds.needs import Need, Work

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_STRETCHES = (1.0, 1.15, 1.4, 1.8, 2.5, 4.0, 7.0)
"""A job's own completion times beside the grid: so many times the shortest."""


_ROUNDING = 1e-6
"""Seconds by which an end may be after a deadline and count as in time: sums of floats are that far from true ones."""


class Choice(NamedTuple):
    """What suits a job best at some prices."""

    least: float
    """No way through it costs less: its cost and its bill."""
    cost: float
    """Of one way that is about the best: what it costs by itself ..."""
    usage: FloatArray
    """... and (intervals, resources) what it takes in each interval, in seconds of the whole resource."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of jobs that are alike, without those that a mixture of others surpasses."""

    usage: FloatArray
    """(sizes, resources) parts of the cluster."""
    speeds: FloatArray
    """(sizes,) rising, of the job per second."""

    @classmethod
    def of(cls, work: Work) -> Sizes:
        speeds = work.speeds()
        kept = np.array(sorted(_efficient(work.usage, speeds)))
        kept = kept[np.argsort(speeds[kept], kind="stable")]
        return cls(work.usage[kept], speeds[kept])


def _efficient(usage: FloatArray, speeds: FloatArray) -> set[int]:
    """Corners of the concave hull among the sizes whose usages are multiples of each other."""
    amounts = usage.sum(axis=1)
    _, group = np.unique(np.round(usage / amounts[:, None], 9), axis=0, return_inverse=True)
    kept: set[int] = set()
    for each in range(int(group.max()) + 1):
        members = np.flatnonzero(group.reshape(-1) == each)
        corner = [(0.0, 0.0, -1)]
        for index in members[np.lexsort((amounts[members], speeds[members]))].tolist():
            used, speed = float(amounts[index]), float(speeds[index])
            while len(corner) > 1 and _surpassed(corner[-2], corner[-1], used, speed):
                corner.pop()
            if speed > corner[-1][1]:
                corner.append((used, speed, index))
        kept |= {index for _, _, index in corner[1:]}
    return kept


def _surpassed(first: tuple[float, float, int], middle: tuple[float, float, int], used: float, speed: float) -> bool:
    return (middle[0] - first[0]) * (speed - first[1]) >= (used - first[0]) * (middle[1] - first[1])


@dataclass(frozen=True, slots=True)
class JobTimes:
    """A job's own intervals: those of the grid from its start on, cut where it may well end."""

    need: Need
    sizes: Sizes
    lengths: FloatArray
    """(k,) seconds."""
    of_grid: IntArray
    """(k,) which interval of the grid each is part of."""
    ends: FloatArray
    """(k,) when each ends."""
    earliest: float
    """No way through the job ends before."""

    @classmethod
    def on(cls, need: Need, sizes: Sizes, edges: FloatArray) -> JobTimes:
        """`edges`: (intervals + 1,) of the grid; the last one is after every end."""
        begin, shortest = need.trains_from, need.work.shortest
        own = begin + shortest * np.array(_STRETCHES) * (1.0 + 1e-9)
        due = [] if need.deadline_at is None else [need.deadline_at]
        cuts = np.unique(np.concatenate([[begin], edges[edges > begin], own, due]))
        cuts = cuts[(cuts >= begin) & (cuts <= edges[-1])]
        of_grid = np.searchsorted(edges, (cuts[:-1] + cuts[1:]) / 2, side="right") - 1
        return cls(need, sizes, np.diff(cuts), np.clip(of_grid, 0, len(edges) - 2), cuts[1:], begin + shortest)

    # --- the two questions ------------------------------------------------------------------------------------------

    def soonest(self, prices: FloatArray) -> Choice:
        """Completion time and bill together at their least; (intervals, resources) prices."""
        costs, count = self._costs(prices), self._worth_looking(prices)
        thetas = self._thetas(costs[:count], self.lengths[:count])
        bills, gains = _bills(thetas, costs[:count], self.sizes.speeds, self.lengths[:count])
        least, ends = self._least_in_each(bills, gains)
        best = int(np.argmin(least))
        end, submitted_at = float(ends[best]), self.need.submitted_at
        way = self._way(costs, best, end - float(self.ends[best] - self.lengths[best]))
        return Choice(float(least[best]) - submitted_at, end - submitted_at, self._on(way, prices))

    def in_time(self, prices: FloatArray) -> Choice:
        """1 if its deadline is missed, and the bill if it is met: the least of the two."""
        missed = Choice(1.0, 1.0, np.zeros_like(prices))
        due = self.need.deadline_at
        count = int(np.count_nonzero(self.ends <= due)) if due is not None else 0
        if due is None or self.earliest > due + _ROUNDING or not count:
            return missed._replace(least=float(due is not None), cost=float(due is not None))
        costs = self._costs(prices)[:count]
        theta = self._theta(costs, self.lengths[:count])
        if not math.isfinite(theta):
            return missed
        bill = float(_bills(np.array([theta]), costs, self.sizes.speeds, self.lengths[:count], last=True)[0][0])
        if bill >= 1.0:
            return missed
        return Choice(bill, 0.0, self._on(self._mixture(costs, self.lengths[:count], theta), prices))

    # --- how ----------------------------------------------------------------------------------------------------------

    def _costs(self, prices: FloatArray) -> FloatArray:
        """(k, sizes) per second."""
        return np.asarray((prices @ self.sizes.usage.T)[self.of_grid])

    def _worth_looking(self, prices: FloatArray) -> int:
        """Intervals up to where the completion time alone is more than what a job that is as large as can be costs."""
        costs = self._costs(prices)[:, -1]
        done = np.minimum(np.cumsum(self.lengths), 1.0 / self.sizes.speeds[-1])
        done_at = max(self.need.trains_from + done[-1], self.earliest)
        dear = float((costs * np.diff(done, prepend=0.0)).sum()) + done_at
        return min(int(np.count_nonzero(self.ends - self.lengths <= dear)) + 1, len(self.ends))

    def _thetas(self, costs: FloatArray, lengths: FloatArray) -> FloatArray:
        """(k,) the price of the job that pays for being done at the end of each interval; infinite where it cannot."""
        slopes, amounts = _pieces(costs, self.sizes.speeds, lengths)
        interval = np.repeat(np.arange(len(lengths)), slopes.shape[1])
        order = np.argsort(slopes, axis=None, kind="stable")
        usable = interval[order][None, :] <= np.arange(len(lengths))[:, None]
        done = np.cumsum(np.where(usable, amounts.reshape(-1)[order][None, :], 0.0), axis=1)
        enough = done >= 1.0 - 1e-9
        first = np.argmax(enough, axis=1)
        return np.where(enough.any(axis=1), slopes.reshape(-1)[order][first], math.inf)

    def _theta(self, costs: FloatArray, lengths: FloatArray) -> float:
        """The same for the end of the last interval."""
        slopes, amounts = _pieces(costs, self.sizes.speeds, lengths)
        order = np.argsort(slopes, axis=None, kind="stable")
        done = np.cumsum(amounts.reshape(-1)[order])
        first = int(np.searchsorted(done, 1.0 - 1e-9))
        return float(slopes.reshape(-1)[order][first]) if first < len(done) else math.inf

    def _least_in_each(self, bills: FloatArray, gains: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(k,) the least of completion time and bill in each interval, and where.

        The bill is convex within an interval, and above the lines that the θ of its two ends give. Below the larger of
        two lines on an interval is none of their values at both ends and where they cross.
        """
        ends, starts = self.ends[: len(bills)], (self.ends - self.lengths)[: len(bills)]
        begins = np.minimum(np.maximum(starts, self.earliest), ends)
        rise_first = np.concatenate([[0.0], 1.0 - np.diagonal(gains, offset=1)])
        rise_last = 1.0 - np.diagonal(gains)
        at_first = np.concatenate([[-math.inf], bills[:-1]])
        at_first = np.where(np.isfinite(at_first), at_first, -math.inf) + starts + (begins - starts) * rise_first
        at_last = bills + ends + (begins - ends) * rise_last
        with np.errstate(invalid="ignore", divide="ignore"):
            cross = (at_first - at_last) / (rise_last - rise_first)
        cross = np.clip(np.where(np.isfinite(cross), cross, 0.0), 0.0, ends - begins)
        after = np.stack([np.zeros(len(bills)), cross, ends - begins])
        values = np.maximum(at_first + after * rise_first, at_last + after * rise_last)
        values[:, (ends < self.earliest) | ~np.isfinite(bills)] = math.inf
        best, all_of_them = np.argmin(values, axis=0), np.arange(len(bills))
        return values[best, all_of_them], (begins + after)[best, all_of_them]

    def _way(self, costs: FloatArray, last: int, length: float) -> FloatArray:
        """(k, sizes) seconds at each size, to be done after so much of the last interval."""
        lengths = self.lengths[: last + 1].copy()
        lengths[-1] = length
        theta = self._theta(costs[: last + 1], lengths)
        if not math.isfinite(theta):  # rounding: the whole interval is enough
            lengths = self.lengths[: last + 1]
            theta = self._theta(costs[: last + 1], lengths)
        return self._mixture(costs[: last + 1], lengths, theta)

    def _mixture(self, costs: FloatArray, lengths: FloatArray, theta: float) -> FloatArray:
        """(k, sizes) seconds at sizes that are best at θ, of the job as a whole."""
        speeds = self.sizes.speeds
        seconds = np.zeros((len(self.lengths), len(speeds)))
        slack = 1e-9 * theta + 1e-12
        few, many = (self._best_sizes(costs, lengths, price) for price in (theta - slack, theta + slack))
        done_few, done_many = float((few @ speeds).sum()), float((many @ speeds).sum())
        part = 1.0 if done_many <= done_few else min(max((1.0 - done_few) / (done_many - done_few), 0.0), 1.0)
        seconds[: len(lengths)] = (1.0 - part) * few + part * many
        return seconds

    def _best_sizes(self, costs: FloatArray, lengths: FloatArray, theta: float) -> FloatArray:
        worth = theta * self.sizes.speeds[None, :] - costs
        best = np.argmax(worth, axis=1)
        rows = np.arange(len(lengths))
        seconds = np.zeros_like(costs)
        seconds[rows, best] = np.where(worth[rows, best] > 0, lengths, 0.0)
        return seconds

    def _on(self, seconds: FloatArray, prices: FloatArray) -> FloatArray:
        """(intervals, resources) of the grid."""
        usage = np.zeros_like(prices)
        np.add.at(usage, self.of_grid, seconds @ self.sizes.usage)
        return usage


def _pieces(costs: FloatArray, speeds: FloatArray, lengths: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(k, sizes) the lower convex hull of cost over speed in each interval: the slope of each piece, rising, and how
    much of the job it does. A slope is the largest over smaller sizes of the least over larger ones (Ayer et al.,
    1955).
    """
    values = np.concatenate([np.zeros((len(costs), 1)), costs], axis=1)
    at = np.concatenate([[0.0], speeds])
    rise = values[:, None, 1:] - values[:, :-1, None]
    run = np.maximum(at[None, 1:] - at[:-1, None], 1e-300)
    valid = np.triu(np.ones(run.shape, dtype=bool))
    between = np.where(valid[None], rise / run[None], math.inf)
    least = np.minimum.accumulate(between[:, :, ::-1], axis=2)[:, :, ::-1]
    slopes = np.where(valid[None], least, -math.inf).max(axis=1)
    return np.maximum(slopes, 0.0), lengths[:, None] * np.diff(at)[None, :]


def _bills(
    thetas: FloatArray, costs: FloatArray, speeds: FloatArray, lengths: FloatArray, *, last: bool = False
) -> tuple[FloatArray, FloatArray]:
    """(j,) the bill for being done at the end of interval j, by θ of j (or, `last`, at the end of all), and (j, k) what
    a second of interval k saves at θ of j.
    """
    finite = np.where(np.isfinite(thetas), thetas, 0.0)
    gains = np.maximum((finite[:, None, None] * speeds[None, None, :] - costs[None]).max(axis=2), 0.0)
    before = np.ones(gains.shape, dtype=bool) if last else np.tril(np.ones(gains.shape, dtype=bool))
    saved = np.where(before, gains * lengths[None, :], 0.0).sum(axis=1)
    return np.where(np.isfinite(thetas), finite - saved, math.inf), gains
