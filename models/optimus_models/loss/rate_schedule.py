"""The learning rates of a run by step: those it had, and those it is known to use later."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray

_EXPONENT = 0.015
"""The loss falls as the learning rate to this power: 3.4 % for a tenth. About the largest that helps classifiers,
detectors and language models alike; it is far too little for step schedules of classifiers (docs/studies/models.md)."""
_LEAST_RATIO = 1e-3
"""Of the largest rate: one that falls further does no more, for schedules end at 0."""
PLANNED = 32
"""Steps at which two schedules are compared."""
_MAX_POINTS = 256
"""Points kept of a schedule."""


class RateSchedule(NamedTuple):
    """Learning rates by step; arrays (m,), m >= 1. Straight lines between them, the last one holds on."""

    steps: FloatArray
    """Strictly increasing, finite."""
    log_rates: FloatArray

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
        least = max(_LEAST_RATIO * float(rate.max()), 1e-300)
        if len(k) > _MAX_POINTS:
            kept = np.linspace(0, len(k) - 1, _MAX_POINTS).round().astype(np.intp)
            k, rate = k[kept], rate[kept]
        return cls(k, np.log(np.maximum(rate, least)))

    def ratios(self, steps: FloatArray, last_step: float) -> FloatArray:
        """(n,) logarithm of the rate at each of `steps` (n,) relative to that at `last_step`, the present one."""
        logs = np.interp(np.append(steps, last_step), self.steps, self.log_rates)
        return np.asarray(logs[:-1] - logs[-1])

    def factors(self, steps: FloatArray, last_step: float) -> FloatArray:
        """(n,) what losses at `steps` (n,) are multiplied with as rates are lowered: above 0 and at most 1."""
        return np.asarray(np.exp(_EXPONENT * np.minimum(self.ratios(steps, last_step), 0.0)))

    def planned(self, last_step: float) -> FloatArray:
        """(p,) steps spread evenly over what is planned after `last_step`; that step itself if nothing is."""
        return np.linspace(last_step, max(self.steps[-1], last_step), PLANNED + 1)[1:]
