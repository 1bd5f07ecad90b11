"""Many loss histories side by side, ready to be fitted at once: each numpy call then serves a whole block of jobs.

The shorter ones are padded at their end with their last point, which `inside` leaves out of every sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.history import FloatArray, LossHistory, replace_outliers

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
