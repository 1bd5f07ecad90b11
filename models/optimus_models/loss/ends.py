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
_ALIKE_BEFORE = 4.0
"""Runs that are believed to lie so far apart before it is seen how far they do."""
_REACH = NormalDist().inv_cdf(0.9)
_QUANTILES = 21
_BENDS = np.array([NormalDist().inv_cdf((i + 0.5) / _QUANTILES) for i in range(_QUANTILES)]) / _REACH
"""Equally likely values of a normal variable, in units of its 80 % bounds."""


_NONE = np.zeros(0)


def predicted_end(
    rule: str,
    now_step: float,
    own: float,
    own_share: float = 1.0,
    theirs: FloatArray = _NONE,
    shares: FloatArray = _NONE,
    spreads: FloatArray = _NONE,
) -> Prediction | None:
    """Median and interval of a mixture of log-normal distributions: round the end by the job's `own` curve and, with
    `shares` (r,), round the ends of finished runs `theirs` (r,), each with a spread (r,) of its own. Infinite ends say
    nothing; None if all are.

    It is known that the end is not before `now_step`: a run that ended sooner is not believed, whatever its share.
    """
    ends = np.append(theirs, max(own, now_step))
    known = ends < math.inf
    if not known.any():
        return None
    now, logs = math.log(max(now_step, 1.0)), np.log(np.maximum(ends[known], 1.0))
    doubts = _REACH * np.append(spreads if len(spreads) else np.zeros(len(theirs)), 0.0)
    down, up = np.repeat(np.hypot(_apart(theirs, shares), doubts)[None, known, None], 2, axis=0)
    if own < math.inf:
        down[-1], up[-1] = _DOWN * (logs[-1] - now), _UP + _UP_AHEAD * (logs[-1] - now)
    places = logs[:, None] + np.where(_BENDS < 0, down, up) * _BENDS
    believed = places >= now
    weights = (np.append(shares, own_share)[known][:, None] * np.ones(_QUANTILES))[believed]
    if not weights.sum() > 0:
        return None
    order = np.argsort(places[believed])
    share = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    ahead = np.exp(np.interp([0.1, 0.5, 0.9], share, places[believed][order]) - now)
    low, mean, high = (max(now_step, 1.0) * ahead).tolist()
    return Prediction(mean, low, high, rule)


def _apart(ends: FloatArray, shares: FloatArray) -> float:
    """80 % bounds of log(end of a job / end of a run), where runs ended at `ends` (r,): as they lie apart, by their
    `shares` (r,), beside made-up ones.

    Not above those of any runs: ends that lie far apart are of several kinds, each of which says its own.
    """
    counted = np.where(ends < math.inf, shares, 0.0)
    if not counted.sum() > 0:
        return _RUN_SPREAD
    counted = counted / counted.sum()
    logs, number = np.log(np.where(counted > 0, np.maximum(ends, 1.0), 1.0)), 1.0 / float(np.sum(counted**2))
    variance = float(counted @ (logs - counted @ logs) ** 2)
    before = (_RUN_SPREAD / _REACH) ** 2
    learned = (_ALIKE_BEFORE * before + number * variance) / (_ALIKE_BEFORE + number - 1.0)
    return _REACH * math.sqrt(min(learned, before))
