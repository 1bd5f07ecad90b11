"""What is believed of the total steps of a job: by its own curve, and by the ends of finished runs."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray


class Prediction(NamedTuple):
    """Total steps after which a rule will hold: `low <= mean <= high`, a median and an 80 % interval."""

    mean: float
    low: float
    high: float
    rule: str
    """The field of the rule that is expected to hold first."""


_DOWN, _UP, _UP_AHEAD = 0.45, 0.1, 0.2
"""80 % bounds of log(true / predicted total steps) by a job's own curve, with a = log(predicted / present step): a
times the first below, the second and a times the third above; docs/studies/models.md."""
_RUN_SPREAD = 0.15
"""80 % bounds of log(end of a job / end of a run that is like it); docs/models.md."""
_QUANTILES = 21
_BENDS = np.array([NormalDist().inv_cdf((i + 0.5) / _QUANTILES) for i in range(_QUANTILES)]) / NormalDist().inv_cdf(0.9)
"""Equally likely values of a normal variable, in units of its 80 % bounds."""


class Ends(NamedTuple):
    """A mixture of log-normal distributions of the end, as many weighted places."""

    logs: FloatArray
    """(m,) of total steps."""
    weights: FloatArray
    """(m,) not normalised."""

    @classmethod
    def of_curve(cls, end: float, now_step: float) -> Ends:
        """What a fitted curve says, by its `end`; nothing if that is infinite."""
        if end == math.inf:
            return cls(np.zeros(0), np.zeros(0))
        ahead = math.log(max(end, now_step, 1.0) / max(now_step, 1.0))
        reach = np.where(_BENDS < 0, _DOWN * ahead, _UP + _UP_AHEAD * ahead)
        return cls(math.log(max(end, now_step, 1.0)) + reach * _BENDS, np.ones(_QUANTILES))

    def beside_runs(self, share: float, ends: FloatArray, shares: FloatArray) -> Ends:
        """These with a `share`, and what finished runs say by their `ends` (r,) with `shares` (r,).

        Infinite ends say nothing.
        """
        known = ends < math.inf
        logs = np.log(np.maximum(ends[known], 1.0))[:, None] + _RUN_SPREAD * _BENDS
        weights = np.repeat(shares[known], _QUANTILES)
        return Ends(np.append(self.logs, logs), np.append(share * self.weights, weights))

    def prediction(self, rule: str, now_step: float) -> Prediction | None:
        """Median and interval, given that the end is not before `now_step`: whoever ended sooner is not believed.

        None if nothing is believed.
        """
        now = math.log(max(now_step, 1.0))
        later = self.logs >= now
        order = np.argsort(self.logs[later])
        logs, weights = self.logs[later][order], self.weights[later][order]
        if not weights.sum() > 0:
            return None
        share = (np.cumsum(weights) - weights / 2) / weights.sum()
        ahead = np.exp(np.interp([0.1, 0.5, 0.9], share, logs) - now)
        low, mean, high = (max(now_step, 1.0) * ahead).tolist()
        return Prediction(mean, low, high, rule)
