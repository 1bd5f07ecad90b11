"""How predicted intervals should be corrected, by how earlier ones of the same kind turned out.

A prediction is a predicted value with an 80 % interval. Once the truth is known, its error is ln(true / predicted). The
errors of predictions that looked alike (same task, about the same part of a job's life, about as sure of themselves)
are the distribution that the next prediction is drawn from: its 10th, 50th and 90th percentile become the bounds and
the median. Before there are any, errors are believed to be as the prediction itself says: so many made-up ones come
from its own interval, a narrower one where those that looked alike, of all tasks, turned out surer than they said. A
conformal predictive distribution: Vovk and others, Computationally efficient versions of conformal predictive
distributions, Neurocomputing 2020; with weights for what is alike: Tibshirani and others, Conformal prediction under
covariate shift, NeurIPS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray

MOST_JUDGED = 1000
"""Newest ones that are made something of."""
_TAIL = 0.1
"""Part of the truths that lies beyond each bound of an 80 % interval."""
_MADE_UP = 10
"""What a prediction says of itself counts as so many ended jobs: one that erred without bound moves no bound beyond
it."""
_HALF_LIFE = 400.0
"""Predictions after which an older one counts half: tasks, machines and models change."""
_SAME_PART = 0.12
"""Parts of life that differ by this much are about the same: the scale of a normal kernel."""
_AS_SURE = 1.0
"""... and half-widths whose logarithms do."""
_NARROWEST = 0.03
"""Half-widths are taken to be at least this (3 %), in logarithms ..."""
_WIDEST = 5.0
"""... and at most this; an error is not larger either: a factor of 150 says no more than that nothing was known."""

_LEAST = 0.2
"""Half-widths become no smaller a part of what they were."""
_REACH = NormalDist().inv_cdf(1.0 - _TAIL)
_PER_JOB = 10
"""Made-up errors for each such job: bounds do not jump between the 5th and the 15th percentile."""
_MOST_TAIL = 0.05
"""Made-up errors end at the 5th and the 95th percentile: a job that erred without bound moves no bound beyond it."""
_MADE_UP_ERRORS = [
    NormalDist(0.0, 1.0 / _REACH).inv_cdf(min(max((n + 0.5) / (_MADE_UP * _PER_JOB), _MOST_TAIL), 1.0 - _MOST_TAIL))
    for n in range(_MADE_UP * _PER_JOB)
]
"""In half-widths: of a prediction that is as sure as it says ..."""
_MADE_UP_WEIGHTS = np.full(_MADE_UP * _PER_JOB, 1.0 / _PER_JOB)
"""... and what each counts."""


class Widening(NamedTuple):
    """How an interval is corrected, in logarithms."""

    down: float = 1.0
    """What the lower half-width is multiplied by ..."""
    up: float = 1.0
    """... and the upper one."""
    shift: float = 0.0
    """Added to the middle."""


AS_PREDICTED = Widening()


class Calibration(NamedTuple):
    """How the intervals that a job's forecast has were corrected."""

    steps: Widening = AS_PREDICTED
    seconds: Widening = AS_PREDICTED
    """Of the time left at its present size."""
    time: Widening = AS_PREDICTED
    """Of the time left, waiting and changes of size included."""
    start: Widening = AS_PREDICTED
    """Of the time until the first tasks."""


UNCALIBRATED = Calibration()


class Predicted(NamedTuple):
    """An interval as it was or is to be said."""

    mean: float
    low: float
    high: float

    @property
    def down(self) -> float:
        """ln(mean / low); inf for a bound of 0."""
        return math.inf if self.low <= 0 else math.log(self.mean / min(self.low, self.mean))

    @property
    def up(self) -> float:
        """ln(high / mean)."""
        return math.inf if self.high == math.inf else math.log(max(self.high, self.mean) / self.mean)

    @property
    def doubt(self) -> float:
        """Mean of both half-widths, bounded."""
        return min(max((min(self.down, _WIDEST) + min(self.up, _WIDEST)) / 2.0, _NARROWEST), _WIDEST)

    def uncorrected(self, by: Widening) -> Predicted:
        """What it was before it was corrected."""
        mean = self.mean * math.exp(-by.shift)
        return Predicted(mean, mean * math.exp(-self.down / by.down), mean * math.exp(min(self.up / by.up, 700.0)))


class Judged(NamedTuple):
    """One prediction and what came."""

    job: str
    task: str
    life: float
    """Part of the job's life that was over, 0 to 1."""
    doubt: float
    """Half-width of the interval as it was predicted, in logarithms."""
    error: float
    """ln(true / predicted), bounded."""

    @classmethod
    def of(cls, job: str, task: str, life: float, predicted: Predicted, true: float) -> Judged | None:
        """None for what cannot be compared in logarithms: a value that is not above 0. `predicted`: not corrected."""
        if not (0 < true < math.inf and 0 < predicted.mean < math.inf):
            return None
        error = math.log(true) - math.log(predicted.mean)
        return cls(job, task, life, predicted.doubt, min(max(error, -_WIDEST), _WIDEST))


class Errors:
    """Judged predictions of one kind, in the order in which they were judged. Immutable."""

    def __init__(self, judged: Sequence[Judged] = ()) -> None:
        judged = judged[-MOST_JUDGED:]
        self._jobs = np.unique([each.job for each in judged], return_inverse=True)[1]
        self._tasks = np.array([each.task for each in judged], dtype=object)
        columns = np.array([(each.life, each.doubt, each.error) for each in judged], dtype=np.float64).reshape(-1, 3)
        self._lives, self._doubts, self._errors = columns[:, 0], np.log(columns[:, 1]), columns[:, 2]
        self._recency = np.exp2((np.arange(len(judged)) + 1.0 - len(judged)) / _HALF_LIFE)
        sizes = np.concatenate([np.abs(self._errors) / columns[:, 1], np.abs(_MADE_UP_ERRORS)])
        self._by_size = np.argsort(sizes, kind="stable")
        self._sizes = sizes[self._by_size]
        """Of errors and made-up ones, in half-widths."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return len(self._errors) > 0

    def widening(self, task: str, life: float, predicted: Predicted, *, moves: bool = False) -> Widening:
        """How the next prediction is to be corrected.

        Args:
            task: of the job.
            life: part of its life that is over, 0 to 1.
            predicted: its interval as it is predicted; `mean` above 0.
            moves: whether its middle is corrected, too. What decisions rest on keeps it.
        """
        if not self:
            return AS_PREDICTED
        down, up = predicted.down, predicted.up
        alike = self._alike(life, predicted.doubt)
        sure = self._half_width_that_held(alike)
        made_up = sure * np.array([each * min(up if each > 0 else down, _WIDEST) for each in _MADE_UP_ERRORS])
        errors = np.concatenate([self._errors, made_up])
        weights = np.concatenate([self._counted(alike, task), _MADE_UP_WEIGHTS])
        low, middle, high = _percentiles(errors, weights)
        if not moves:
            low, middle, high = min(low, 0.0), 0.0, max(high, 0.0)
        return Widening(_factor(middle - low, down), _factor(high - middle, up), middle)

    def _alike(self, life: float, doubt: float) -> FloatArray:
        """How much each error looks like that of the prediction, of any task; those of one job together at most 1."""
        apart = ((self._lives - life) / _SAME_PART) ** 2 + ((self._doubts - math.log(doubt)) / _AS_SURE) ** 2
        weights = self._recency * np.exp(-0.5 * apart)
        alike: FloatArray = weights / np.maximum(np.bincount(self._jobs, weights)[self._jobs], 1.0)
        return alike

    def _half_width_that_held(self, alike: FloatArray) -> float:
        """The part of their half-widths by which such predictions erred at most in eight of ten cases, beside made-up
        ones that are as sure as they say; 1 at most."""
        weights = np.concatenate([alike, _MADE_UP_WEIGHTS])[self._by_size]
        share = (np.cumsum(weights) - weights / 2.0) / weights.sum()
        return min(float(np.interp(1.0 - 2.0 * _TAIL, share, self._sizes)), 1.0)

    def _counted(self, alike: FloatArray, task: str) -> FloatArray:
        """What each error counts.

        Other tasks together count no more than what a prediction says of itself, and less the more is known of its own.
        """
        is_own = self._tasks == task
        own, others = float(alike[is_own].sum()), float(alike[~is_own].sum())
        part = _MADE_UP / max(others, _MADE_UP) * _MADE_UP / (_MADE_UP + own)
        counted: FloatArray = np.where(is_own, alike, part * alike)
        return counted


@dataclass(frozen=True, eq=False)
class Experience:
    """How the predictions of each kind turned out, for a job of one task."""

    task: str = ""
    steps: Errors = field(default_factory=Errors)
    seconds: Errors = field(default_factory=Errors)
    time: Errors = field(default_factory=Errors)
    start: Errors = field(default_factory=Errors)
    """Of jobs of all tasks, which wait in the same queue: judged as of the task ""."""


NO_EXPERIENCE = Experience()


def _factor(corrected: float, predicted: float) -> float:
    """What a half-width is multiplied by; one without end stays so, and one without any width."""
    return 1.0 if predicted == math.inf or predicted <= 0 else max(corrected / predicted, _LEAST)


def _percentiles(errors: FloatArray, weights: FloatArray) -> tuple[float, float, float]:
    """The 10th, 50th and 90th: errors that occur, so that a single one far outside moves none of them there."""
    order = np.argsort(errors, kind="stable")
    below = np.cumsum(weights[order])
    places = np.searchsorted(below, np.array([_TAIL, 0.5, 1.0 - _TAIL]) * below[-1])
    low, middle, high = errors[order][np.minimum(places, len(order) - 1)].tolist()
    return low, middle, high
