"""Measured all-reduce steps, cleaned and merged before anything is fitted to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray

_REPEATS = 4.0
"""Repeating one size ever again counts as at most so many measurements: its error is partly systematic."""
_LARGEST_COUNT = 1e6
"""No cluster has more nodes or workers, and no worker a larger batch: such a count is an error of its reporter."""
_SHORTEST, _LONGEST = 1e-9, 1e9
"""Steps outside these seconds are errors of the clock."""
_LEAST_GRADIENT_SHARE = 1e-3
"""A step spends at least this part of its time on its gradient, whatever was reported as exchange."""


class AllReducePoints(NamedTuple):
    """Distinct measured sizes; arrays (n,), n may be 0."""

    nodes: FloatArray
    workers: FloatArray
    batches: FloatArray
    """Examples per worker and step."""
    seconds: FloatArray
    """Of one step."""
    gradient_seconds: FloatArray
    """The part of it before the exchange became visible; NaN where that was not measured."""
    weights: FloatArray
    """1 for one measurement."""

    @classmethod
    def of(
        cls,
        nodes: ArrayLike,
        workers: ArrayLike,
        batches: ArrayLike,
        seconds: ArrayLike,
        sync_seconds: ArrayLike | None = None,
    ) -> AllReducePoints:
        """The usable rows (finite, in range) of parallel arrays; those of the same size merged to their medians."""
        columns = [np.asarray(values, dtype=np.float64).reshape(-1) for values in (nodes, workers, batches, seconds)]
        n = min(len(column) for column in columns)
        table = np.column_stack([column[:n] for column in columns])
        gradient = table[:, 3] - _padded(sync_seconds, n)
        usable = np.all((table[:, :3] >= (1.0, 1.0, 1e-9)) & (table[:, :3] <= _LARGEST_COUNT), axis=1)  # NaN: false
        usable &= (table[:, 3] >= _SHORTEST) & (table[:, 3] <= _LONGEST)
        table, gradient = table[usable], gradient[usable]
        table[:, 0] = np.minimum(table[:, 0], table[:, 1])  # nodes without a worker take no part
        return _merged(table, gradient)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def sizes(self) -> FloatArray:
        """(n, 3): nodes, workers, batch per worker."""
        return np.column_stack([self.nodes, self.workers, self.batches])


def _padded(values: ArrayLike | None, n: int) -> FloatArray:
    """(n,): what there is of `values`, NaN for the rest and for what no clock can have shown."""
    given = np.asarray([] if values is None else values, dtype=np.float64).reshape(-1)[:n]
    given = np.where(np.isfinite(given) & (given >= 0) & (given <= _LONGEST), given, np.nan)
    return np.concatenate([given, np.full(n - len(given), np.nan)])


def _merged(table: FloatArray, gradient: FloatArray) -> AllReducePoints:
    sizes, group = np.unique(table[:, :3], axis=0, return_inverse=True)
    group = group.reshape(-1)
    rows = [group == index for index in range(len(sizes))]
    seconds = np.array([float(np.median(table[row, 3])) for row in rows])
    gradients = np.array([_median_of_known(gradient[row]) for row in rows])
    weights = np.minimum(np.bincount(group, minlength=len(sizes)).astype(np.float64), _REPEATS)
    least = _LEAST_GRADIENT_SHARE * seconds
    return AllReducePoints(sizes[:, 0], sizes[:, 1], sizes[:, 2], seconds, np.maximum(gradients, least), weights)


def _median_of_known(values: FloatArray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")
