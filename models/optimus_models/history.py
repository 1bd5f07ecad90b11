"""What happens to a loss history before anything is fitted to it (paper, section 3.1).

Raw telemetry is hostile: NaN after a divergence, steps out of order after a roll-back, a million points. After
`LossHistory.of` there are at most `MAX_POINTS` finite losses at increasing steps, whatever came in.
"""

from __future__ import annotations

from dataclasses import dataclass

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
