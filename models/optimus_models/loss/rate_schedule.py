"""The learning rates of a run by step: those it had, and those it is known to use later."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray

PLANNED = 32
"""Steps at which two schedules are compared."""
_MAX_POINTS = 256
"""Points kept of a schedule."""


class RateSchedule(NamedTuple):
    """Learning rates by step; arrays (m,), m >= 1. Straight lines between them, the last one holds on."""

    steps: FloatArray
    """Strictly increasing, finite."""
    shares: FloatArray
    """Of the highest rate, from 0 to 1; 1 up to that one: a warm-up lowers nothing."""
    fall: float = 0.15
    """What a loss falls by while its rate is lowered to 0, as a part of what it falls by over the steps
    (docs/studies/models.md)."""

    @classmethod
    def of(cls, steps: ArrayLike, rates: ArrayLike) -> RateSchedule | None:
        """From the parallel arrays of steps (any order; past and planned) and the rate at each.

        A surplus of either is ignored, and so are rates that are not finite or below 0. None without any above 0.
        """
        k, rate = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (steps, rates))
        length = min(len(k), len(rate))
        k, rate = k[:length], rate[:length]
        usable = np.isfinite(k) & (rate >= 0) & (rate < np.inf)
        if not (usable.all() and (k[1:] > k[:-1]).all()):
            k, first = np.unique(k[usable][::-1], return_index=True)  # of several at one step, the last
            rate = rate[usable][::-1][first]
        if not (rate > 0).any():
            return None
        shares = rate / rate.max()
        shares[: np.argmax(rate)] = 1.0
        if len(k) > _MAX_POINTS:
            kept = np.linspace(0, len(k) - 1, _MAX_POINTS).round().astype(np.intp)
            k, shares = k[kept], shares[kept]
        return cls(k, shares)

    def lowered(self, steps: FloatArray) -> FloatArray:
        """(...) by how much of the highest rate it is lowered at each of `steps` (...): 0 to 1."""
        return np.asarray(1.0 - np.interp(steps, self.steps, self.shares))

    def planned(self, last_step: float) -> FloatArray:
        """(p,) steps spread evenly over what is planned after `last_step`; that step itself if nothing is."""
        return np.linspace(last_step, max(self.steps[-1], last_step), PLANNED + 1)[1:]
