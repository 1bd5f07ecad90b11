"""What a change of a running job's size costs: predicted seconds of stopped progress."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

PRIOR_SECONDS = 2.0
"""Median stop before any was observed: a membership change takes tenths of a second, a restart about five."""
_PRIOR_LOG_SPREAD = 0.9
"""... and most stops lie within a factor of about 2.5 of it."""
_PRIOR_COUNT = 1.0
"""Observations that the prior median is worth: the first real one counts as much as all belief before it."""
_PRIOR_SPREAD_COUNT = 3.0
"""Observations that the prior spread is worth."""
_SHORTEST, _LONGEST = 1e-3, 86_400.0
"""Stops outside these seconds count as these: logarithms need something above 0, and a day is no rescale any more."""


def is_prior(seconds: float) -> bool:
    """Whether a predicted stop is what is believed before any was observed."""
    return math.isclose(seconds, PRIOR_SECONDS, rel_tol=1e-12)


@dataclass(frozen=True, slots=True)
class RescaleCost:
    """Stopped seconds of the next membership change: log-normal, learned from those observed."""

    n_points: int
    confidence: float
    """0 with no observation, towards 1 with many."""
    _location: float
    _scale: float
    _freedom: float

    @classmethod
    def fit(cls, seconds: ArrayLike = (), *, others: RescaleCost | None = None) -> RescaleCost:
        """Learn from observed stops in seconds; what is not finite or below 0 is ignored. Never raises on data.

        `others`, fitted to the stops of other jobs on the same cluster, is what is believed before the first own one.

        The posterior predictive of a log-normal with a conjugate (normal, inverse-gamma) prior: Student's t in the
        logarithm (Gelman et al., Bayesian Data Analysis, section 3.3).
        """
        observed = np.asarray(seconds, dtype=np.float64).reshape(-1)
        observed = observed[np.isfinite(observed) & (observed >= 0)]
        logs = np.log(np.clip(observed, _SHORTEST, _LONGEST))
        n = len(logs)
        mean = float(logs.mean()) if n else 0.0
        prior, spread = math.log(PRIOR_SECONDS), _PRIOR_LOG_SPREAD
        if others is not None:
            # The spread of others' stops, and never less than half of that before any was seen: jobs differ.
            prior, spread = others._location, max(min(others._scale, spread), spread / 2.0)
        count = _PRIOR_COUNT + n
        freedom = _PRIOR_SPREAD_COUNT + n
        squares = _PRIOR_SPREAD_COUNT * spread**2 + float(((logs - mean) ** 2).sum())
        squares += _PRIOR_COUNT * n / count * (mean - prior) ** 2
        location = (_PRIOR_COUNT * prior + n * mean) / count
        scale = math.sqrt(squares / freedom * (1.0 + 1.0 / count))
        return cls(n, n / (n + 2.0), location, scale, freedom)

    def predict(self) -> float:
        """Seconds: the median, which half of the stops exceed."""
        return math.exp(self._location)

    def predict_interval(self, coverage: float = 0.8) -> tuple[float, float]:
        """Bounds (low, high) in seconds that hold the next stop with probability `coverage`."""
        from scipy.special import stdtrit  # takes as long as all else of this package

        reach = float(stdtrit(self._freedom, 0.5 + coverage / 2.0)) * self._scale
        return math.exp(self._location - reach), math.exp(self._location + reach)
