"""Measured speeds, cleaned and merged, and brought up to the present, before anything is fitted to them.

A card that has to be shared, or is free again, makes a whole job two or three times slower or faster, at all sizes.
Forgetting alone then misleads: the sizes not measured since still look as fast as they were. So a change is looked for
in sizes that were measured before and after it, and everything older is multiplied by the same factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray

_REPEATS = 4.0
"""Repeating one (w, p) ever again counts as at most so many measurements: its error is partly systematic."""
_LEAST_WEIGHT = 1e-6
"""Measurements that weigh less than this, relative to the heaviest, are forgotten."""
_LARGEST_COUNT = 1e6
"""No cluster has more workers or servers: a larger count is a reporting error."""


class SpeedPoints(NamedTuple):
    """Distinct measured (w, p), each with its speed and weight; arrays (n,), n may be 0."""

    workers: FloatArray
    servers: FloatArray
    speeds: FloatArray
    """Steps per second."""
    weights: FloatArray
    """1 for one recent measurement."""

    @classmethod
    def of(
        cls, workers: ArrayLike, servers: ArrayLike, speeds: ArrayLike, weights: ArrayLike | None = None
    ) -> SpeedPoints:
        """The usable ones (finite, above 0) of parallel arrays, those at the same (w, p) merged to their median."""
        w, p, f = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (workers, servers, speeds))
        v = np.ones_like(f) if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
        n = min(len(w), len(p), len(f), len(v))
        w, p, f, v = w[:n], p[:n], f[:n], v[:n]
        usable = (w >= 1) & (w <= _LARGEST_COUNT) & (p >= 1) & (p <= _LARGEST_COUNT)  # NaN compares false
        usable &= (f > 1e-100) & (f < 1e100) & (v > 0) & (v < np.inf)
        usable &= v > _LEAST_WEIGHT * np.max(v, where=usable, initial=0.0)
        w, p, f, v = w[usable], p[usable], f[usable], v[usable]
        return _merged(w, p, f, v / v.max()) if len(f) else cls(w, p, f, v)

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def most_central(self) -> int:
        """Index of the point nearest to the weighted centre, on logarithmic axes."""
        position = np.log(np.column_stack([self.workers, self.servers]))
        centre = np.average(position, axis=0, weights=self.weights)
        return int(np.argmin(((position - centre) ** 2).sum(axis=1)))


def _merged(w: FloatArray, p: FloatArray, f: FloatArray, v: FloatArray) -> SpeedPoints:
    order = np.lexsort((p, w))
    pairs, f, v = np.empty((len(w), 2)), f[order], v[order]
    pairs[:, 0], pairs[:, 1] = w[order], p[order]
    is_new = np.ones(len(f), dtype=bool)
    is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    if is_new.all():  # each size was measured once
        return SpeedPoints(pairs[:, 0], pairs[:, 1], f, np.minimum(v, _REPEATS))
    group, pairs = np.cumsum(is_new) - 1, pairs[is_new]
    totals = np.minimum(np.bincount(group, weights=v), _REPEATS)
    medians = np.array([weighted_median(f[group == g], v[group == g]) for g in range(len(pairs))])
    return SpeedPoints(pairs[:, 0], pairs[:, 1], medians, totals)


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The middle of the values: one stalled interval must not move it."""
    order = np.argsort(values)
    ranked, cumulated = values[order], np.cumsum(weights[order])
    half = cumulated[-1] / 2.0
    low = int(np.searchsorted(cumulated, half * (1 - 1e-9)))
    high = int(np.searchsorted(cumulated, half * (1 + 1e-9)))
    return float((ranked[low] + ranked[min(high, len(ranked) - 1)]) / 2.0)


_LEAST_CHANGE = 0.22
"""Smaller changes of log speed (25 %) are left to forgetting: neighbours come and go."""
_LEAST_AFTER = 2
"""One slow interval is a hiccup; so many after each other are a change."""
_LEAST_GAIN = 12.0
"""A change must improve the log likelihood by half of this, about as for a test at 0.05 % ..."""
_NOISE = 0.05
"""... where a speed measured again at the same size is at least this uncertain (relative)."""
_MOST_CHANGES = 3
"""Changes corrected, the clearest first."""
_TRUST_IN_OLD = 0.3
"""Weight of a measurement from before a change: its share of computing and sending is no longer quite the same."""


def may_have_changed(speeds: FloatArray) -> bool:
    """Whether speeds (n,) of one size are far enough apart for a change; of those that are not, `present_speeds` finds
    none."""
    return not np.max(speeds) < np.min(speeds) * np.exp(_LEAST_CHANGE)


class PresentSpeeds(NamedTuple):
    """Arrays (n,), in the order of the measurements."""

    speeds: FloatArray
    """What would be measured now."""
    weights: FloatArray
    """1, or less for measurements from before a change."""


def present_speeds(workers: FloatArray, servers: FloatArray, speeds: FloatArray, at: FloatArray) -> PresentSpeeds:
    """Correct `speeds` (n,), measured at times `at`, for changes of the whole job's speed since.

    Measurements that are not above 0 and finite are left as they are and count for nothing.
    """
    usable = (speeds > 0) & np.isfinite(speeds) & np.isfinite(at) & np.isfinite(workers) & np.isfinite(servers)
    measured = list(zip(workers[usable].tolist(), servers[usable].tolist(), strict=True))
    log_speeds, times = np.log(speeds[usable]), at[usable]
    weights = np.ones(len(times))
    # A change shows only where a size was measured again.
    sizes = _size_numbers(measured) if len(set(measured)) < len(measured) else None
    for _ in range(_MOST_CHANGES):
        change = None if sizes is None else _clearest_change(sizes, log_speeds, times)
        if change is None:
            break
        is_old = times < change.at
        log_speeds = log_speeds + np.where(is_old, change.log_factor, 0.0)
        weights = np.where(is_old, weights * _TRUST_IN_OLD, weights)
    present, trust = speeds.copy(), np.ones(len(speeds))
    present[usable], trust[usable] = np.exp(log_speeds), weights
    return PresentSpeeds(present, trust)


class _Change(NamedTuple):
    at: float
    """Time of the first measurement after it."""
    log_factor: float
    """Log speed after - before."""


def _size_numbers(sizes: Sequence[tuple[float, float]]) -> FloatArray:
    """(n, s) 1 where measurement n was made at the s-th distinct size; `sizes`: workers and servers of each."""
    number = {size: place for place, size in enumerate(sorted(set(sizes)))}
    return np.eye(len(number))[[number[size] for size in sizes]]


def _clearest_change(sizes: FloatArray, log_speeds: FloatArray, times: FloatArray) -> _Change | None:
    """The change that explains most, if it is clear: least squares of log speed = mean of its size + δ·(after τ).

    `sizes` (n, s) tells the size of each measurement. With values and steps taken relative to the means of their sizes,
    δ = Σ y·z / Σ z², and the squared error falls by δ²·Σ z². All τ are tried at once.
    """
    moments = np.unique(times)[1:]  # (m,) possible τ
    is_after = times[:, None] >= moments  # (n, m)
    moments = moments[is_after.sum(axis=0) >= _LEAST_AFTER]
    if not len(moments):
        return None
    step = (times[:, None] >= moments).astype(np.float64)
    counts = sizes.sum(axis=0)
    y = log_speeds - sizes @ (sizes.T @ log_speeds / counts)
    z = step - sizes @ (sizes.T @ step / counts[:, None])
    squared = (z**2).sum(axis=0)  # 0 where no size was measured on both sides
    delta = np.divide(y @ z, squared, out=np.zeros(len(moments)), where=squared > 1e-9)
    explained = delta**2 * squared
    best = int(np.argmax(explained))
    left = float(y @ y - explained[best])
    noise = max(_NOISE**2, left / max(len(y) - len(counts) - 1, 1))
    if abs(delta[best]) < _LEAST_CHANGE or explained[best] < _LEAST_GAIN * noise:
        return None
    return _Change(float(moments[best]), float(delta[best]))
