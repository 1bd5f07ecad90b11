"""The learning rates that a job is known to use later: losses fall a little when they are lowered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray

_EXPONENT = 0.015
"""The loss falls as the learning rate to this power: 3.4 % for a tenth. About the largest that helps classifiers,
detectors and language models alike; it is far too little for step schedules of classifiers (docs/models.md)."""
_LEAST_RATIO = 1e-3
"""A rate that falls further does no more: schedules end at 0."""
_MAX_POINTS = 256
"""Points kept of a schedule."""


class RateSchedule(NamedTuple):
    """Learning rates to come, relative to the present one; arrays (m,), m >= 1."""

    steps: FloatArray
    """Increasing; the first is the present step."""
    log_ratios: FloatArray
    """0 or below."""

    @classmethod
    def of(cls, steps: ArrayLike, rates: ArrayLike) -> RateSchedule | None:
        """From one rate for each of `steps` and, if there are more, one for each step after the last of them.

        Later steps are as far apart as those given, on average. None if no later rate is known, or its step is beyond
        all numbers. Rates that are not finite or below 0 are as the one before.
        """
        k = np.asarray(steps, dtype=np.float64).reshape(-1)
        rate = np.asarray(rates, dtype=np.float64).reshape(-1)
        n = len(k)
        if n < 2 or len(rate) <= n or not np.isfinite(k).all() or k.max() <= k.min():
            return None
        order = np.argsort(k, kind="stable")
        known = _carried_on(np.concatenate([rate[:n][order], rate[n:]]))[n - 1 :]
        if not known[0] > 0:  # NaN compares false
            return None
        with np.errstate(over="ignore"):
            later = k.max() + (k.max() - k.min()) / (n - 1) * np.arange(len(known))
        if not np.isfinite(later).all():
            return None
        log_ratios = np.clip(_log(known) - _log(known[:1]), np.log(_LEAST_RATIO), 0.0)
        kept = np.unique(np.linspace(0, len(known) - 1, _MAX_POINTS).round().astype(np.intp))
        return cls(later[kept], log_ratios[kept])

    def factors(self, steps: FloatArray) -> FloatArray:
        """(n,) what losses at `steps` (n,) are multiplied with, above 0 and at most 1."""
        return np.asarray(np.exp(_EXPONENT * np.interp(steps, self.steps, self.log_ratios)))


def _carried_on(rates: FloatArray) -> FloatArray:
    """`rates` (n,) with unusable ones replaced by the last usable one before; NaN before the first."""
    usable = (rates >= 0) & (rates < np.inf)
    place = np.maximum.accumulate(np.where(usable, np.arange(len(rates)), -1))
    return np.where(place >= 0, rates[np.maximum(place, 0)], np.nan)


def _log(rates: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(rates, 1e-300)))
