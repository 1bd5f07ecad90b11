"""How promised times left turned out, and what later ones are corrected by. Pure but for what it remembers.

A score is the error of the promised median in half-widths of its interval, in logarithms. The scores of ended jobs, of
promises at about the same part of a job's life, are the distribution that the next promise is drawn from: its 10th,
50th and 90th percentile become the bounds and the median (a conformal predictive distribution: Vovk and others,
Computationally efficient versions of conformal predictive distributions, Neurocomputing 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.ahead.world import REACH
from optimus_scheduler.model import Interval

FloatArray = NDArray[np.float64]

_MOST_SCORES = 1000
"""Newest ones that are remembered."""
_HALF_LIFE = 400.0
"""Scores after which an older one counts half."""
_NEAR = 0.12
"""Parts of life that differ by this much are about the same: the scale of a normal kernel."""
_OTHER_TASK = 0.3
"""What a score of another task counts."""
_PRIOR_COUNT = 8
"""As many made-up scores that were exactly right."""
_NARROWEST = 0.03
"""Half-widths are at least this, in logarithms (3 %)."""
_LEAST_SECONDS = 1.0


class Score(NamedTuple):
    """A promise of an ended job."""

    task: str
    life: float
    """Part of its life that was over by the promise itself, 0 to 1."""
    score: float

    @classmethod
    def of(cls, task: str, age: float, promised: Interval, true: float) -> Score:
        """`age`: seconds since submission; `true`: seconds that were left."""
        error = math.log(max(true, _LEAST_SECONDS) / max(promised.mean, _LEAST_SECONDS))
        return cls(task, life_part(age, promised), error / _half_width(promised))


def life_part(age: float, promised: Interval) -> float:
    """The part of its life that is over, if the promised median is right."""
    return age / max(age + promised.mean, _LEAST_SECONDS)


def _half_width(promised: Interval) -> float:
    low, high = (max(bound, _LEAST_SECONDS) for bound in (promised.low, promised.high))
    return max(math.log(high / low) / 2.0, _NARROWEST)


class Scores:
    """The scores of ended jobs, in the order in which they ended. Belongs to one shell."""

    def __init__(self) -> None:
        self._scores: list[Score] = []
        self._columns: tuple[list[str], FloatArray, FloatArray] = ([], np.empty(0), np.empty(0))

    def add(self, scores: Sequence[Score]) -> None:
        self._scores = [*self._scores, *scores][-_MOST_SCORES:]
        lives, values = (np.array([each[k] for each in self._scores], dtype=np.float64) for k in (1, 2))
        self._columns = [each.task for each in self._scores], lives, values

    def corrected(self, task: str, age: float, promised: Interval) -> Interval:
        """The promise as it should be, by how earlier ones turned out; `low <= mean <= high`."""
        tasks, lives, scores = self._columns
        ages = np.arange(len(scores), dtype=np.float64) - len(scores) + 1.0
        weights = np.exp2(ages / _HALF_LIFE)
        weights *= np.exp(-0.5 * ((lives - life_part(age, promised)) / _NEAR) ** 2)
        weights *= np.array([1.0 if each == task else _OTHER_TASK for each in tasks])
        bounds = _quantiles(scores, weights) * _half_width(promised)
        low, middle, high = (promised.mean * math.exp(bound) for bound in bounds.tolist())
        return Interval(middle, low, high)


_PRIOR = np.array([NormalDist(0.0, 1.0 / REACH).inv_cdf((n + 0.5) / _PRIOR_COUNT) for n in range(_PRIOR_COUNT)])
_TAIL = 0.1
"""Part of the truths that may lie beyond each bound."""


def _quantiles(scores: FloatArray, weights: FloatArray) -> FloatArray:
    """(3,) 10th, 50th and 90th percentile of the scores and the made-up ones."""
    values = np.concatenate([scores, _PRIOR])
    order = np.argsort(values, kind="stable")
    weight = np.concatenate([weights, np.ones(_PRIOR_COUNT)])[order]
    middles = (np.cumsum(weight) - weight / 2.0) / weight.sum()
    # Of n scores the next one lies beyond the k-th with k / (n + 1): few scores need a level further out.
    count = weight.sum() ** 2 / (weight**2).sum()
    tail = max(_TAIL - (1.0 - _TAIL) / count, 0.0)
    return np.asarray(np.interp([tail, 0.5, 1.0 - tail], middles, values[order]))
