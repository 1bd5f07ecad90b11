"""Measured speeds, cleaned and merged before anything is fitted to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray

_REPEATS = 4.0
"""Repeating one (w, p) ever again counts as at most so many measurements: its error is partly systematic."""
_LEAST_WEIGHT = 1e-6
"""Measurements that weigh less than this, relative to the heaviest, are forgotten."""
_LARGEST_COUNT = 1e6
"""No cluster has more workers or servers: a larger count is an error of whoever reported it."""


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
    pairs, group = np.unique(np.column_stack([w, p]), axis=0, return_inverse=True)
    group = group.reshape(-1)
    medians = [_weighted_median(f[group == g], v[group == g]) for g in range(len(pairs))]
    totals = np.minimum(np.bincount(group, weights=v), _REPEATS)
    return SpeedPoints(pairs[:, 0], pairs[:, 1], np.array(medians), totals)


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The middle of the values: one stalled interval must not move it."""
    order = np.argsort(values)
    ranked, cumulated = values[order], np.cumsum(weights[order])
    half = cumulated[-1] / 2.0
    low = int(np.searchsorted(cumulated, half * (1 - 1e-9)))
    high = int(np.searchsorted(cumulated, half * (1 + 1e-9)))
    return float((ranked[low] + ranked[min(high, len(ranked) - 1)]) / 2.0)
