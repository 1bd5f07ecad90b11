"""The loss curve of one training job, and that of a metric: what it will be at a later step, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray, LossBatch, LossHistory
from optimus_models.loss.finished_runs import Experts, Prior, experts_of
from optimus_models.loss.inverse_law import InverseFit, InverseLaw, fit_inverse_laws
from optimus_models.loss.mixture import PowerMixture, fit_power_mixtures, recent_weights
from optimus_models.loss.rate_schedule import RateSchedule

_BLOCK = 32
"""Histories fitted in one go: the arrays of a block stay in the processor's cache."""
_SURE_POINTS = 8.0
"""Points after which the mere number of points no longer holds confidence down by more than half."""
_PLACES = 9
"""Places at which the mean over a third of the points is looked at."""
_NOISES_FALL = 2.0
"""Standard deviations of the mean over a third of the points that noise may make of a fall."""
_SPREADS, _NOISES = 1.2, 0.3
"""Half an 80 % interval: so many spreads of the averaged curves and so much of the noise, ..."""
_DROP, _DROP_BEFORE_A_FALL = 0.35, 1.0
"""... and below, this share of the present loss per unit of log(step / last step), up to one unit: one run in ten falls
further because somebody lowers its learning rate, which no history can tell, and the first plateau is the highest."""


@dataclass(frozen=True, slots=True, eq=False)
class LossCurve:
    """A fitted loss history: Eq. 1 of the paper, and a mixture of power laws that predicts.

    `beta0`, `beta1`, `beta2` describe 1/(β0·k + β1) + β2 fitted to loss / `scale`; they are always reported. `scale`
    is the largest |loss| so far. A loss that goes below zero is moved up by `-offset` first (0 for ordinary losses).
    A fitted curve always exists; with nothing to go by `n_points` is 0, `confidence` 0 and predictions are NaN.
    """

    last_step: float
    """The newest step reported; predictions beyond it are extrapolation."""
    first_step: float
    n_points: int = 0
    """Finite losses that the fit rests on, before down-sampling."""
    mixture: PowerMixture | None = field(default=None, repr=False)
    """None when nothing is known."""
    experts: Experts | None = field(default=None, repr=False)
    """Finished runs of the same family, if there are any."""
    informed: PowerMixture | None = field(default=None, repr=False)
    """The same with its learning rates, past and planned, if they are known."""
    highest: float = np.inf
    """0 if no loss was above it: no bound will be."""
    beta0: float = 0.0
    beta1: float = 1.0
    beta2: float = 0.0
    scale: float = 1.0
    """In units of the loss, above 0."""
    offset: float = 0.0
    """In units of the loss, 0 or below."""
    confidence: float = 0.0
    """0 (nothing known) to 1."""
    residual: float = 0.0
    """Root mean squared residual as a fraction of `scale`."""
    noise: float = 0.0
    """The same, or the noise of the last third of the points where that is larger."""
    fall: float = 0.0
    """How far the loss has fallen since the start, as a fraction of `scale`; 0 where noise may be all of it, and of a
    run that has lost more than half of its fall again."""
    fall_error: float = 0.0
    """Standard error of `fall`, from noise alone."""

    @classmethod
    def fit(
        cls,
        steps: ArrayLike,
        losses: ArrayLike,
        *,
        history: Prior | None = None,
        schedule: RateSchedule | None = None,
    ) -> Self:
        """Fit to parallel arrays of steps and losses (any order, NaN and infinities allowed). Never raises on data.

        `history`: finished runs of the same family, which the curve follows as far as this run has gone their way.
        `schedule`: its learning rates, past and planned: where they will be lowered, the loss will fall further.
        """
        return cls.fit_many([LossHistory.of(steps, losses)], priors=[history], schedules=[schedule])[0]

    @classmethod
    def fit_many(
        cls,
        histories: Sequence[LossHistory],
        *,
        priors: Sequence[Prior | None] | None = None,
        schedules: Sequence[RateSchedule | None] | None = None,
    ) -> list[Self]:
        """What `fit` gives for each of `histories`, at a fraction of the time.

        `priors`, one for each: the `history` that `fit` takes. Jobs of one family should share one. `schedules`, one
        for each: the learning rates of each.
        """
        nothing = [None] * len(histories)
        known_runs = priors if priors is not None else nothing
        rates = schedules if schedules is not None else nothing
        curves = {i: cls(each.last_step, each.last_step) for i, each in enumerate(histories) if not len(each)}
        task = {id(prior): number for number, prior in enumerate(known_runs)}  # one block asks few priors
        fitted_ones = (i for i, history in enumerate(histories) if len(history))
        known = sorted(fitted_ones, key=lambda i: (task[id(known_runs[i])], len(histories[i])))
        for block in (known[start : start + _BLOCK] for start in range(0, len(known), _BLOCK)):
            fitted = cls._fit_block(
                [histories[i] for i in block], [known_runs[i] for i in block], [rates[i] for i in block]
            )
            curves |= zip(block, fitted, strict=True)
        return [curves[i] for i in range(len(histories))]

    @classmethod
    def _fit_block(
        cls,
        histories: Sequence[LossHistory],
        priors: Sequence[Prior | None],
        schedules: Sequence[RateSchedule | None],
    ) -> list[Self]:
        """Fit histories of about the same number of points, none of them empty."""
        batch = LossBatch.of(histories)
        laws, mixtures = fit_inverse_laws(batch), fit_power_mixtures(batch)
        residuals, weighted = cls._residuals(laws, mixtures)
        fall, fall_error = _fall(batch, residuals, weighted)
        confidence, noise = _confidence(histories, batch, residuals, fall), _late_noise(batch)
        noise = np.maximum(noise, residuals)
        columns = (*laws[:3], batch.scales, batch.offsets, confidence, residuals, noise, fall, fall_error)
        numbers = zip(*(column.tolist() for column in columns), strict=True)
        experts = experts_of(batch, priors, schedules)
        informed: list[PowerMixture | None] = [None] * len(histories)
        if any(schedules):
            with_rates = zip(fit_power_mixtures(batch, schedules), schedules, strict=True)
            informed = [each if schedule else None for each, schedule in with_rates]
        highest = [0.0 if history.losses.max() <= 0 else np.inf for history in histories]
        known = zip(histories, mixtures, experts, informed, highest, numbers, strict=True)
        return [
            cls(history.last_step, float(history.steps[0]), history.n_points, *others, *each)
            for history, *others, each in known
        ]

    @classmethod
    def _residuals(cls, _laws: InverseFit, mixtures: Sequence[PowerMixture]) -> tuple[FloatArray, FloatArray]:
        """(j,) each: what the fit leaves of the normalised losses, of all points alike and by its weights."""
        return np.array([each.noise for each in mixtures]), np.array([each.weighted_noise for each in mixtures])

    def predict(self, steps: ArrayLike) -> FloatArray:
        """Expected loss at each of `steps`, in units of the loss; NaN when nothing is known."""
        return self._forecast(_as_steps(steps)).mean * self.scale + self.offset

    def predict_alone(self, steps: ArrayLike) -> FloatArray:
        """The same by the job's own losses, without what finished runs and learning rates say."""
        return self._own(_as_steps(steps))[0] * self.scale + self.offset

    def predict_and_decrease_alone(self, steps: ArrayLike, distance: float) -> tuple[FloatArray, FloatArray]:
        """`predict_alone`, and how far the loss falls from each of `steps` to `distance` steps later, by the job's own
        losses."""
        k = _as_steps(steps)
        if self.mixture is None:
            before = self.predict_alone(k)
            return before, before - self.predict_alone(k + distance)
        loss, decrease = self.mixture.loss_and_decrease(k, distance)
        return loss * self.scale + self.offset, decrease * self.scale

    def predict_interval(self, steps: ArrayLike, coverage: float = 0.8) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high), each shaped like `steps`, that hold the smoothed loss with probability `coverage`.

        They do not leave the side of 0 on which all losses were.
        """
        k = _as_steps(steps)
        forecast, unit = self._forecast(k), NormalDist().inv_cdf(0.5 + coverage / 2.0)
        horizon = np.clip(np.log(np.maximum(k / max(self.last_step, 1.0), 1.0)), 0.0, 1.0)
        drop = horizon * self._own(np.array([self.last_step]))[0] * (_DROP if self.fall else _DROP_BEFORE_A_FALL)
        either = (_SPREADS * forecast.spread + _NOISES * self.noise) / NormalDist().inv_cdf(0.9) + forecast.apart
        mean, scale = forecast.mean * self.scale + self.offset, self.scale * unit
        low = mean - scale * (either + drop * forecast.own_share / NormalDist().inv_cdf(0.9))
        high = np.minimum(mean + scale * either + self.scale * forecast.lowered, np.maximum(self.highest, mean))
        return (np.maximum(low, 0.0) if self.offset == 0.0 else low), high

    def _own(self, k: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The normalised loss at `k` (n,) by the job's own losses, and the standard deviation of the curves."""
        if self.mixture is None:
            return np.full(len(k), np.nan), np.full(len(k), np.nan)
        return self.mixture.loss_and_spread(k)

    def _forecast(self, k: FloatArray) -> _Forecast:
        """The normalised loss at `k` (n,)."""
        own, spread = self._own(k)
        lowered = np.zeros(len(k))
        if self.informed is not None:
            plain, (own, spread) = own, self.informed.loss_and_spread(k)
            lowered = np.maximum(plain - own, 0.0)
        if self.experts is None:
            return _Forecast(own, spread, 1.0, np.zeros(len(k)), lowered)
        theirs = self._own(np.array([self.experts.last_step]))[0] * self.experts.ratios(k)  # (r, n)
        share, ahead = self.experts.own_share, k > self.experts.last_step
        mean = np.where(ahead, self.experts.shares @ theirs + share * own, own)
        variance = self.experts.shares @ (theirs - mean) ** 2 + share * (own - mean) ** 2
        return _Forecast(mean, share * spread, share, np.where(ahead, np.sqrt(variance), 0.0), share * lowered)


class PaperLossCurve(LossCurve):
    """The paper's method: outliers replaced, loss normalised, points down-sampled, Eq. 1 by non-negative least squares.

    Learning rates and finished runs change nothing.
    """

    __slots__ = ()

    @classmethod
    def _fit_block(
        cls,
        histories: Sequence[LossHistory],
        _priors: Sequence[Prior | None],
        _schedules: Sequence[RateSchedule | None],
    ) -> list[Self]:
        nothing = [None] * len(histories)
        return super()._fit_block(histories, nothing, nothing)

    @classmethod
    def _residuals(cls, laws: InverseFit, _mixtures: Sequence[PowerMixture]) -> tuple[FloatArray, FloatArray]:
        return laws.residual, laws.residual

    def predict_and_decrease_alone(self, steps: ArrayLike, distance: float) -> tuple[FloatArray, FloatArray]:
        k = _as_steps(steps)
        before = self.predict_alone(k)
        return before, before - self.predict_alone(k + distance)

    def _own(self, k: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean, spread = super()._own(k)
        return (mean if self.mixture is None else InverseLaw(self.beta0, self.beta1, self.beta2).loss(k)), spread


class _Forecast(NamedTuple):
    """Normalised losses at n steps and what makes them uncertain."""

    mean: FloatArray
    spread: FloatArray
    """Standard deviation of the averaged curves, as far as the job's own curve counts."""
    own_share: float
    """How much the job's own curve counts beside finished runs."""
    apart: FloatArray
    """Standard deviation of finished runs and own curve round `mean`; 0 without finished runs."""
    lowered: FloatArray
    """What lower learning rates take off `mean`; the upper bound does not count on it."""


def _as_steps(steps: ArrayLike) -> FloatArray:
    return np.maximum(np.asarray(steps, dtype=np.float64).reshape(-1), 0.0)


def _late_noise(batch: LossBatch) -> FloatArray:
    """(j,) standard deviation of single points about their neighbours, over the last third of the points."""
    is_late = batch.inside & (np.arange(batch.inside.shape[1]) >= (batch.counts - np.ceil(batch.counts / 3))[:, None])
    squares = np.square(np.diff(batch.losses, axis=1, prepend=batch.losses[:, :1])) / 2.0
    return np.asarray(np.sqrt(np.where(is_late, squares, 0.0).sum(axis=1) / is_late.sum(axis=1)))


def _fall(batch: LossBatch, residual: FloatArray, weighted: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(j,) how far the mean over a third of the points has fallen, and the standard error; see `LossCurve.fall`.

    The `residual` (j,) takes what the fit leaves out of account, the first points of a steep fall, for noise of all.
    Where the present loss keeps half of the fall, too, noise is what the residuals are by the fit's weights,
    `weighted` (j,).
    """
    width = np.ceil(batch.counts / 3).astype(np.intp)
    total = np.concatenate([np.zeros((len(width), 1)), np.cumsum(batch.losses, axis=1)], axis=1)
    begins = np.linspace(0, batch.counts.astype(np.intp) - width, _PLACES, dtype=np.intp)  # (places, j)
    rows = np.arange(len(width))
    means = (total[rows, begins + width] - total[rows, begins]) / width
    fall, half = means[0] - means[-1], (means[0] - means.min(axis=0)) / 2.0
    is_kept = means[0] - (batch.losses * recent_weights(batch)).sum(axis=1) >= half
    error = np.where(is_kept, np.minimum(residual, weighted), residual) * np.sqrt(2.0 / width)
    return np.where((fall > _NOISES_FALL * error) & (fall >= half), fall, 0.0), error


def _confidence(
    histories: Sequence[LossHistory], batch: LossBatch, residual: FloatArray, fall: FloatArray
) -> FloatArray:
    """(j,) high for many points that lie close to a falling curve; 0 for a run that has just diverged."""
    counts = np.array([history.n_points for history in histories])
    by_count = 1.0 - np.exp2(-(counts - 1) / _SURE_POINTS)
    spread = batch.losses.max(axis=1) - batch.losses.min(axis=1)
    by_fit = np.where(spread > 0, 1.0 - np.minimum(1.0, 2.0 * residual / np.maximum(spread, 1e-300)), 0.5)
    by_trend = np.where(fall > 0, 1.0, 0.2)  # the end of a curve that does not fall is not known
    ends_finite = np.array([history.ends_finite for history in histories])
    return np.where(ends_finite, np.clip(by_count * by_fit * by_trend, 0.0, 1.0), 0.0)


_LEAST_EVALUATIONS = 3
"""Evaluations needed before the fitted curve may confirm one."""


@dataclass(frozen=True, eq=False)
class MetricCurve:
    """A fitted metric. It rises towards `best` or, if that is None, falls like a loss (error rate, perplexity)."""

    shortfall: LossCurve
    """best - metric, or the metric itself if it falls."""
    best: float | None
    newest: tuple[float, ...]
    """The last two values reported, the newest last."""

    @classmethod
    def fit(
        cls,
        steps: ArrayLike,
        values: ArrayLike,
        *,
        best: float | None = 1.0,
        history: Prior | None = None,
    ) -> MetricCurve:
        """Fit to parallel arrays, as `LossCurve.fit` does. `best`: 1 for an accuracy, 100 for one in per cent.

        `history` holds finished runs of the shortfall.
        """
        metric = np.asarray(values, dtype=np.float64).reshape(-1)
        missing = metric if best is None else best - metric
        return cls(LossCurve.fit(steps, missing, history=history), best, tuple(metric[-2:].tolist()))

    @property
    def n_points(self) -> int:
        return self.shortfall.n_points

    @property
    def confidence(self) -> float:
        return self.shortfall.confidence

    def shortfall_at(self, target: float) -> float:
        """The shortfall of a metric that has the value `target`."""
        return target if self.best is None else self.best - target

    def has_reached(self, target: float) -> bool:
        """Whether the last evaluation reached `target`, and that was no accident: the one before it did too, or the
        fitted curve of three evaluations or more does."""
        reached = [value <= target if self.best is None else value >= target for value in self.newest]
        if not reached or not reached[-1]:
            return False
        if len(reached) == 2 and reached[0]:
            return True
        at_last = float(self.shortfall.predict([self.shortfall.last_step])[0])
        return self.n_points >= _LEAST_EVALUATIONS and at_last <= self.shortfall_at(target)

    def predict(self, steps: ArrayLike) -> FloatArray:
        """Expected metric at each of `steps`; NaN when nothing is known."""
        missing = self.shortfall.predict(steps)
        return missing if self.best is None else self.best - missing

    def predict_interval(self, steps: ArrayLike, coverage: float = 0.8) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high), each shaped like `steps`, that hold the smoothed metric with probability `coverage`."""
        low, high = self.shortfall.predict_interval(steps, coverage)
        return (low, high) if self.best is None else (self.best - high, self.best - low)
