"""How much wider or narrower predicted intervals should be, by how earlier ones of the same kind turned out.

A promise is a predicted value with an 80 % interval. Once the truth is known, its score is the error in half-widths: 1
at the upper bound, -1 at the lower one. Were intervals right, a tenth of the scores would be above 1 and a tenth below
-1; what the tenths are in fact is how much wider the next interval should be (split conformal prediction with a score
for each side). Romano, Patterson, Candès, Conformalized Quantile Regression, NeurIPS 2019; Gibbs, Candès, Adaptive
Conformal Inference Under Distribution Shift, NeurIPS 2021, for why old scores have to count less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray

_TAIL = 0.1
"""Part of the truths that lies beyond each bound of an 80 % interval."""
_PRIOR_COUNT, _PRIOR_POINTS = 12.0, 200
"""What is believed before any was judged counts as so many promises, spread over so many made-up errors: a single real
one far outside widens its side by half, two count in full."""
_HALF_LIFE = 100.0
"""Promises after which an older one counts half: tasks, machines and models change."""
_LEAST, _MOST = 0.4, 5.0
"""Bounds of what intervals are multiplied by: 60 promises of one task do not show more."""
_NARROWEST = 0.01
"""Half-widths are taken to be at least this (1 %): none at all would make any error an infinite score."""


class Widening(NamedTuple):
    """What the half-widths of an interval are multiplied by, in logarithms."""

    down: float = 1.0
    up: float = 1.0


AS_PREDICTED = Widening()


class Calibration(NamedTuple):
    """Of the two intervals that a job's forecast has."""

    steps: Widening = AS_PREDICTED
    seconds: Widening = AS_PREDICTED


UNCALIBRATED = Calibration()


class Judged(NamedTuple):
    """One promise and what came: logarithms, so that no unit matters."""

    error: float
    """ln(true / predicted)."""
    down: float
    """ln(predicted / lower bound) as the model gave it, before any widening; inf for a bound of 0 ..."""
    up: float
    """... and ln(upper bound / predicted)."""

    @classmethod
    def of(cls, true: float, mean: float, low: float, high: float, widened: Widening = AS_PREDICTED) -> Judged | None:
        """None for what cannot be compared in logarithms: a value that is not above 0.

        `widened`: what the half-widths were multiplied by when it was promised.
        """
        if not (0 < true < math.inf and 0 < mean < math.inf):
            return None
        down = math.inf if low <= 0 else math.log(mean / min(low, mean)) / widened.down
        up = math.inf if high == math.inf else math.log(max(high, mean) / mean) / widened.up
        return cls(math.log(true / mean), down, up)

    @property
    def score(self) -> float:
        """The error in half-widths of its side."""
        return self.error / max(self.up if self.error > 0 else self.down, _NARROWEST)


def widening(
    promises: Sequence[Judged], prior: Widening = AS_PREDICTED, shares: Sequence[float] | None = None
) -> Widening:
    """By judged promises of one kind, in the order in which they were judged.

    Args:
        promises: what was promised and what came.
        prior: what is believed before any was: of a task, what all tasks together show.
        shares: how much each counts, 1 for one that has nothing to do with the others. Promises of one job err
            together: each of n has a share of 1/n, so that one job alone changes next to nothing.
    """
    if not promises:
        return prior
    scores = np.array([each.score for each in promises])
    counts = np.ones(len(scores)) if shares is None else np.asarray(shares, dtype=np.float64)
    since = counts.sum() - np.cumsum(counts)
    weights = counts * np.exp2(-since / _HALF_LIFE)
    down = _quantile(np.concatenate([-scores, prior.down * _RIGHT]), weights)
    up = _quantile(np.concatenate([scores, prior.up * _RIGHT]), weights)
    return Widening(_bounded(down), _bounded(up))


def _quantile(scores: FloatArray, weights: FloatArray) -> float:
    """The score that `_TAIL` of the weight exceeds, `weights` being those of the real scores, which come first."""
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(np.concatenate([weights, np.full(_PRIOR_POINTS, _PRIOR_COUNT / _PRIOR_POINTS)])[order])
    place = int(np.searchsorted(below, (1.0 - _TAIL) * below[-1]))
    return float(scores[order][min(place, len(order) - 1)])


def _right() -> FloatArray:
    """Scores of promises that are exactly right: quantiles of a normal distribution whose tenths are at -1 and 1."""
    normal = NormalDist(0.0, 1.0 / NormalDist().inv_cdf(1.0 - _TAIL))
    return np.array([normal.inv_cdf((n + 0.5) / _PRIOR_POINTS) for n in range(_PRIOR_POINTS)])


_RIGHT = _right()


def _bounded(factor: float) -> float:
    return min(max(factor, _LEAST), _MOST)
