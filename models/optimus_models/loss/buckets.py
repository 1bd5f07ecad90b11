"""The losses of a running job in bounded memory, at a cost per new point that does not grow with the run.

Exact while the run is short; means over 2, 4, 8, ... neighbouring steps when it grows.
"""

from __future__ import annotations

import math

import numpy as np

from optimus_models.history import LARGEST_LOSS, FloatArray

MAX_LOSS_POINTS = 128
"""A fit gets hardly better from more points of the same curve (docs/models.md), only slower."""

_WEIGHT, _STEP, _FINITE, _LOSS, _BROKEN = range(5)
"""Rows of the table: weight; weight · step; weight of finite losses; that weight · loss; the last loss that was not."""


class LossBuckets:
    """Loss by step. A bucket is the mean over the steps that share step // stride, weighted by examples.

    `add` at the end of the run takes constant time, averaged over the run; elsewhere it may move all buckets, of which
    there are never more than `max_points`.
    """

    def __init__(self, max_points: int = MAX_LOSS_POINTS) -> None:
        self._max_points = max_points
        self._stride = 1
        self._n = 0
        self._places = np.zeros(max_points + 1, dtype=np.int64)
        """step // stride of each bucket, increasing."""
        self._table = np.zeros((5, max_points + 1))

    def __len__(self) -> int:
        return self._n

    def add(self, step: int, loss: float, n_examples: int = 1) -> None:
        """Count one report. Several ranks may report the same step: the mean is weighted by their examples."""
        weight = float(max(n_examples, 1))
        bucket = self._table[:, self._bucket(step // self._stride)]
        bucket[_WEIGHT] += weight
        bucket[_STEP] += weight * step
        if abs(loss) < LARGEST_LOSS:  # NaN compares false
            bucket[_FINITE] += weight
            bucket[_LOSS] += weight * loss
        else:
            bucket[_BROKEN] = loss
        while self._n > self._max_points:
            self._coarsen()

    def roll_back(self, step: int) -> None:
        """Steps beyond `step` did not happen. Coarse buckets across the border stay: they are right in part."""
        self._n = int(np.searchsorted(self._places[: self._n] * self._stride, step, side="right"))

    def points(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Steps, increasing, and the loss at each: the mean of the finite ones, NaN or infinite if there are none."""
        steps, losses = self.arrays()
        return tuple(steps.tolist()), tuple(losses.tolist())

    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """The same as two arrays (n,)."""
        table = self._table[:, : self._n]
        finite = table[_FINITE] > 0
        losses = np.divide(table[_LOSS], table[_FINITE], out=table[_BROKEN].copy(), where=finite)
        return table[_STEP] / table[_WEIGHT], losses

    def _bucket(self, place: int) -> int:
        """The column of the bucket `place`, which is made if it is not there."""
        end = self._n
        if end and place > self._places[end - 1]:
            column = end
        else:
            column = int(np.searchsorted(self._places[:end], place))
            if column < end and self._places[column] == place:
                return column
            self._places[column + 1 : end + 1] = self._places[column:end].copy()
            self._table[:, column + 1 : end + 1] = self._table[:, column:end].copy()
        self._places[column] = place
        self._table[:, column] = (0.0, 0.0, 0.0, 0.0, math.nan)
        self._n += 1
        return column

    def _coarsen(self) -> None:
        """Merge neighbours: half as many buckets where every place was taken."""
        self._stride *= 2
        halved, table = self._places[: self._n] // 2, self._table[:, : self._n]
        starts = np.flatnonzero(np.diff(halved, prepend=halved[0] - 1))
        sums = np.add.reduceat(table, starts, axis=1)
        ends = np.append(starts[1:], self._n) - 1
        sums[_BROKEN] = np.where(np.isnan(table[_BROKEN, ends]), table[_BROKEN, starts], table[_BROKEN, ends])
        self._n = len(starts)
        self._places[: self._n], self._table[:, : self._n] = halved[starts], sums
