"""Loss histories: as reported point by point, as cleaned for a fit, and many padded to one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

MAX_POINTS = 256
"""Points kept for one fit: a curve has few degrees of freedom, and a refit must stay about a millisecond."""
OUTLIER_NEIGHBOURS = 5
"""Neighbours on each side that define an outlier (the paper's example)."""
LARGEST_LOSS = 1e100
"""Beyond this a loss is as good as infinite: squares of it would overflow."""


@dataclass(frozen=True, slots=True, eq=False)
class LossHistory:
    """A cleaned loss history. Arrays of one length n, 0 <= n <= `MAX_POINTS`."""

    steps: FloatArray
    """(n,) strictly increasing."""
    losses: FloatArray
    """(n,) finite, in the units of the job."""
    largest: float
    """The largest |loss| seen, 0 when there is none."""
    last_step: float
    """The last step that was reported, finite loss or not; 0 when there is none."""
    ends_finite: bool
    """False when the newest loss was NaN or infinite: the run has diverged."""
    n_points: int
    """How many finite losses came in, before down-sampling."""

    @classmethod
    def of(cls, steps: ArrayLike, losses: ArrayLike) -> LossHistory:
        """Clean the parallel arrays `steps` and `losses`; a surplus of either is ignored."""
        k, loss = _as_floats(steps), _as_floats(losses)
        length = min(len(k), len(loss))
        k, loss = _in_step_order(k[:length], loss[:length])
        finite = np.abs(loss) < LARGEST_LOSS  # NaN compares false
        last_step = float(k[-1]) if len(k) else 0.0
        ends_finite = bool(finite[-1]) if len(k) else True
        k, loss = k[finite], loss[finite]
        largest = float(np.max(np.abs(loss))) if len(loss) else 0.0
        n_points = len(loss)
        k, loss = _downsampled(k, loss)
        return cls(k, loss, largest, last_step, ends_finite, n_points)

    def __len__(self) -> int:
        return len(self.steps)


def replace_outliers(
    losses: FloatArray, inside: NDArray[np.bool_] | None = None, neighbours: int = OUTLIER_NEIGHBOURS
) -> FloatArray:
    """Replace points outside [min of the following, max of the preceding `neighbours`] by their neighbours' mean.

    `losses` (..., n): each row by itself; where not `inside`, there is only padding at the end of a row.

    References: Peng et al., EuroSys 2018, section 3.1.
    """
    if losses.shape[-1] < 3:
        return losses
    real = np.ones(losses.shape, dtype=bool) if inside is None else inside
    low, high = np.full(losses.shape, np.inf), np.full(losses.shape, -np.inf)
    following = np.where(real, losses, np.inf)
    for apart in range(1, min(neighbours, losses.shape[-1] - 1) + 1):
        np.minimum(low[..., :-apart], following[..., apart:], out=low[..., :-apart])
        np.maximum(high[..., apart:], losses[..., :-apart], out=high[..., apart:])
    has_both_sides = np.zeros(losses.shape, dtype=bool)  # the first sets the scale, the last has only one neighbour
    has_both_sides[..., 1:-1] = real[..., 2:]
    outside = has_both_sides & ((losses < low) | (losses > high))
    around = losses.copy()
    around[..., 1:-1] = (losses[..., :-2] + losses[..., 2:]) / 2
    return np.where(outside, around, losses)


def _as_floats(values: ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _in_step_order(steps: FloatArray, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sorted by step; of several points at one step (after a roll-back) the last to arrive."""
    if np.isfinite(steps).all() and (steps[1:] > steps[:-1]).all():
        return steps, losses
    order = np.flatnonzero(np.isfinite(steps))
    order = order[np.argsort(steps[order], kind="stable")]
    if len(order):
        newest = np.append(np.diff(steps[order]) > 0, True)
        order = order[newest]
    return steps[order], losses[order]


def _downsampled(steps: FloatArray, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means over at most `MAX_POINTS` groups of consecutive points."""
    n = len(steps)
    if n <= MAX_POINTS:
        return steps, losses
    starts = np.linspace(0, n, MAX_POINTS, endpoint=False).astype(np.intp)
    counts = np.diff(np.append(starts, n))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(losses, starts) / counts


BoolArray = NDArray[np.bool_]


class LossBatch(NamedTuple):
    """j cleaned histories of at least one point each, at most n points."""

    steps: FloatArray
    """(j, n) >= 0, increasing up to the padding."""
    losses: FloatArray
    """(j, n) outliers replaced, moved up by -`offsets`, divided by `scales`: the largest is about 1."""
    inside: BoolArray
    """(j, n) False for padding."""
    counts: FloatArray
    """(j,) points of each."""
    offsets: FloatArray
    """(j,) in units of the loss, 0 or below."""
    scales: FloatArray
    """(j,) in units of the loss, above 0."""

    @classmethod
    def of(cls, histories: Sequence[LossHistory]) -> LossBatch:
        """Stack `histories`, none of them empty."""
        counts = np.array([len(history) for history in histories])
        inside = np.arange(counts.max()) < counts[:, None]
        steps = _padded([history.steps for history in histories], inside)
        losses = _padded([history.losses for history in histories], inside)
        offsets = _offsets(losses)
        scales = np.maximum(np.array([history.largest for history in histories]) - offsets, 1e-12)
        normalised = (replace_outliers(losses, inside) - offsets[:, None]) / scales[:, None]
        return cls(np.maximum(steps, 0.0), normalised, inside, counts.astype(np.float64), offsets, scales)

    def first_half(self) -> LossBatch:
        """Each without its points beyond half of its last step; the first point stays."""
        inside = self.inside & (self.steps <= self.steps[:, -1:] / 2)
        inside[:, 0] = True
        counts = inside.sum(axis=1)
        inside = inside[:, : counts.max()]
        filled = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
        steps, losses = (np.take_along_axis(table, filled, axis=1) for table in (self.steps, self.losses))
        return self._replace(steps=steps, losses=losses, inside=inside, counts=counts.astype(np.float64))

    def mean(self, values: FloatArray) -> FloatArray:
        """(j,) means of `values` (j, n) over the points of each history."""
        means: FloatArray = np.where(self.inside, values, 0.0).sum(axis=1) / self.counts
        return means

    @property
    def reach(self) -> FloatArray:
        """(j,) the last step of each, 1 for a history at step 0: the unit of `position`."""
        last = self.steps[:, -1]
        return np.where(last > 0, last, 1.0)


def _padded(rows: Sequence[FloatArray], inside: BoolArray) -> FloatArray:
    """(j, n) `rows` of different lengths, each filled up with its last value."""
    last = np.array([row[-1] for row in rows])
    table = np.repeat(last[:, None], inside.shape[1], axis=1)
    table[inside] = np.concatenate(rows)
    return table


def _offsets(losses: FloatArray) -> FloatArray:
    """What makes room for curves that cannot go below 0 under losses that do: as much again as they have fallen."""
    smallest, largest = losses.min(axis=1), losses.max(axis=1)
    return np.where(smallest >= 0, 0.0, 2.0 * smallest - largest)


MAX_LOSS_POINTS = 128
"""A fit gets hardly better from more points of the same curve (docs/studies/models.md), only slower."""

_WEIGHT, _STEP, _FINITE, _LOSS, _BROKEN, _AT = range(6)
"""Rows of the table: weight; weight · step; weight of finite losses; that weight · loss; the last loss that was not;
weight · moment."""
_NO_PLACES, _NO_SUMS = np.zeros(0, dtype=np.int64), np.zeros((6, 0))
"""Those of every record in which nothing is yet: thousands of jobs wait, each with some such records."""


class LossBuckets:
    """Loss by step. A bucket is the mean over the steps that share step // stride, weighted by examples.

    There are never more than `max_points` buckets; an empty record takes next to no memory.
    """

    __slots__ = ("_max_points", "_places", "_points", "_stride", "_table")

    def __init__(self, max_points: int = MAX_LOSS_POINTS) -> None:
        self._max_points = max_points
        self._stride = 1
        self._places = _NO_PLACES
        """step // stride of each bucket, increasing."""
        self._table = _NO_SUMS
        self._points: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        """The answer of `points`, until something is added: every round asks for those of every job."""

    def __len__(self) -> int:
        return len(self._places)

    def add(self, step: int, loss: float, n_examples: int = 1, at: float = math.nan) -> None:
        """Count one report. Several ranks may report the same step: the mean is weighted by their examples."""
        self.add_many((step,), (loss,), (n_examples,), (at,))

    def add_many(
        self, steps: ArrayLike, losses: ArrayLike, n_examples: ArrayLike = 1, at: ArrayLike = math.nan
    ) -> None:
        """Count reports (n,) in this order: the same, to the last bit, as one after the other. `at`: when each was
        made, POSIX seconds; NaN: not known."""
        steps, losses = np.asarray(steps, dtype=np.int64), _as_floats(losses)
        weights = np.maximum(np.broadcast_to(_as_floats(n_examples), steps.shape), 1.0)
        moments = np.broadcast_to(_as_floats(at), steps.shape)
        self._points = None
        while len(steps):
            n_added = self._add_until_full(steps, losses, weights, moments)
            while len(self) > self._max_points:
                self._coarsen()
            steps, losses = steps[n_added:], losses[n_added:]
            weights, moments = weights[n_added:], moments[n_added:]

    def roll_back(self, step: int) -> None:
        """Steps beyond `step` did not happen. Coarse buckets across the border stay: they are right in part."""
        n = int(np.searchsorted(self._places * self._stride, step, side="right"))
        self._places, self._table, self._points = self._places[:n], self._table[:, :n], None

    def points(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Steps, increasing, and the loss at each: the mean of the finite ones, NaN or infinite if there are none.

        The very same while nothing is added: who compares them need not look at each.
        """
        if self._points is None:
            steps, losses = self.arrays()
            self._points = tuple(steps.tolist()), tuple(losses.tolist())
        return self._points

    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """The same as two arrays (n,)."""
        finite = self._table[_FINITE] > 0
        losses = np.divide(self._table[_LOSS], self._table[_FINITE], out=self._table[_BROKEN].copy(), where=finite)
        return self._table[_STEP] / self._table[_WEIGHT], losses

    def moments(self) -> tuple[float, ...]:
        """When each of `points` was, POSIX seconds: the mean over its reports; NaN where one of them did not tell."""
        return tuple((self._table[_AT] / self._table[_WEIGHT]).tolist())

    def state(self) -> tuple[int, NDArray[np.int64], FloatArray]:
        """All that is known, for `of_state`: the stride, places (n,) and sums (6, n)."""
        return self._stride, self._places, self._table

    @classmethod
    def of_state(
        cls, stride: int, places: NDArray[np.int64], table: FloatArray, max_points: int = MAX_LOSS_POINTS
    ) -> LossBuckets:
        """The record that had this state. One of five rows is of a release that did not keep moments."""
        if len(table) == _AT:
            table = np.vstack((table, np.full(table.shape[1], math.nan)))
        buckets = cls(max_points)
        buckets._stride, buckets._places, buckets._table = stride, places, table
        return buckets

    def _add_until_full(
        self, steps: NDArray[np.int64], losses: FloatArray, weights: FloatArray, moments: FloatArray
    ) -> int:
        """Count the first of these reports, up to the one that makes one bucket too many; how many."""
        places = self._make_room(steps // self._stride)
        n, columns = len(places), np.searchsorted(self._places, places)
        steps, losses, weights = steps[:n], losses[:n], weights[:n]
        np.add.at(self._table[_WEIGHT], columns, weights)  # in this order, as rounding depends on it
        np.add.at(self._table[_STEP], columns, weights * steps)
        np.add.at(self._table[_AT], columns, weights * moments[:n])
        finite = np.abs(losses) < LARGEST_LOSS  # NaN compares false
        if not finite.all():
            self._table[_BROKEN, columns[~finite]] = losses[~finite]
            columns, losses, weights = columns[finite], losses[finite], weights[finite]
        np.add.at(self._table[_FINITE], columns, weights)
        np.add.at(self._table[_LOSS], columns, weights * losses)
        return n

    def _make_room(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make the buckets of the first of these places that are not there; those places that have one now."""
        known = self._places
        found = known.searchsorted(places)
        is_new = np.append(known, -1)[found] != places  # no place is negative
        if not is_new.any():
            return places
        new = places[is_new]
        room = self._max_points + 1 - len(known)
        if len(new) >= room:
            new, first = np.unique(new, return_index=True)
        if len(new) >= room:  # nothing after the report that makes the last one
            last = np.sort(first)[room - 1]
            places, new = places[: np.flatnonzero(is_new)[last] + 1], new[first <= last]
        merged = np.concatenate((known, new))
        merged.sort()
        if len(new) > 1:
            merged = merged[np.append(True, merged[1:] != merged[:-1])]
        table = np.zeros((6, len(merged)))
        table[_BROKEN] = math.nan
        table[:, merged.searchsorted(known)] = self._table
        self._places, self._table = merged, table
        return places

    def _coarsen(self) -> None:
        """Merge neighbours: half as many buckets where every place was taken."""
        self._stride *= 2
        halved, table = self._places // 2, self._table
        starts = np.flatnonzero(np.diff(halved, prepend=halved[0] - 1))
        ends = np.append(starts[1:], len(halved)) - 1
        sums = np.add.reduceat(table[:_BROKEN], starts, axis=1)
        broken = np.where(np.isnan(table[_BROKEN, ends]), table[_BROKEN, starts], table[_BROKEN, ends])
        moments = np.add.reduceat(table[_AT], starts)
        self._places = halved[starts]
        self._table = np.vstack((sums, broken, moments))
