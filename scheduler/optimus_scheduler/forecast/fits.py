"""The models of all jobs, fitted to their telemetry and remembered for one round: most telemetry is old.

A fit is a pure function of what was reported, so remembering it changes no answer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray, LossHistory
from optimus_models.loss.curve import LossCurve, MetricCurve
from optimus_models.loss.rate_schedule import RateSchedule
from optimus_models.speed.boundary import Boundary
from optimus_models.speed.goodput import Goodput, StepTimes
from optimus_scheduler.forecast.goodput_fits import ElasticData
from optimus_scheduler.forecast.priors import LossPriors, has_prior
from optimus_scheduler.forecast.speed_fits import SpeedData, fit_speeds, without_noise
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.forecast.uneven_epochs import Length, lengths_of
from optimus_scheduler.model import EndedJob, Job, JobSpec, MetricTarget, SpeedSample
from optimus_scheduler.settings import Settings


def rate_schedule(job: Job) -> RateSchedule | None:
    """None for a job that has told neither."""
    if not job.rate_steps and not job.planned_rate_steps:
        return None
    steps, rates = rates_to_come(job)
    return RateSchedule.of(np.concatenate([job.rate_steps, steps]), np.concatenate([job.learning_rates, rates]))


def rates_to_come(job: Job) -> tuple[FloatArray, FloatArray]:
    """(m,) steps after the newest reported rate, and the rate that is planned for each.

    A plan counts relative to that rate: what multiplies all rates of the job, such as a larger batch, is not in it.
    """
    steps, rates = np.array(job.planned_rate_steps, dtype=float), np.array(job.planned_rates, dtype=float)
    first = np.searchsorted(steps, job.rate_steps[-1] if job.rate_steps else -1.0, side="right")
    return steps[first:], _measured_by_planned(job) * rates[first:]


def _measured_by_planned(job: Job) -> float:
    """The newest reported rate by what was planned for its step; 1 where one of them is not known, or 0."""
    if not job.learning_rates or not job.planned_rates:
        return 1.0
    planned = float(np.interp(job.rate_steps[-1], job.planned_rate_steps, job.planned_rates))
    measured = job.learning_rates[-1]
    return measured / planned if measured > 0 and planned > 0 else 1.0


_Points = tuple[tuple[float, ...], tuple[float, ...]]
"""Steps and the value at each."""
_Rates = tuple[_Points, _Points]
"""Learning rates: those reported, and those planned."""
_Metric = tuple[_Points, MetricTarget]


class _Reported(NamedTuple):
    """All that the models of a job are a function of."""

    spec: JobSpec
    loss_steps: tuple[float, ...]
    losses: tuple[float, ...]
    rates: _Rates
    speed_samples: tuple[SpeedSample, ...]
    calculated_speeds: tuple[SpeedSample, ...]
    similar: tuple[EndedJob, ...]
    metric_steps: tuple[float, ...]
    metric_values: tuple[float, ...]
    steps_per_epoch: float | None
    """As far as losses of ended jobs are compared with its own, epoch by epoch."""
    half_life_seconds: float
    full_weight_steps: int
    elastic: ElasticData | None
    boundary: Boundary | None

    @classmethod
    def by(cls, job: Job, settings: Settings) -> _Reported:
        return cls(
            job.spec,
            job.loss_steps,
            job.losses,
            _rates(job),
            job.speed_samples,
            job.calculated_speeds,
            job.similar,
            job.metric_steps,
            job.metric_values,
            job.steps_per_epoch if has_prior(job) else None,
            settings.sample_half_life_seconds,
            settings.full_weight_steps,
            ElasticData.of(job, settings),
            job.boundary,
        )

    @property
    def step_times(self) -> tuple[object, ...]:
        """All that the step times of a job with an elastic batch are a function of: its noise changes more often."""
        return self.spec, self.speed_samples, self.similar


class Fitted(NamedTuple):
    """The models of one job."""

    curve: LossCurve
    speeds: Speeds
    metric: MetricCurve | None
    """Of the metric that its convergence rule names; None without one."""
    curve_numbers: Mapping[str, float]
    """The loss curve in numbers, for people."""
    lengths: tuple[Length, ...]
    """Of ended jobs like it (`lengths_of`)."""


class _Known(NamedTuple):
    """The models of a job, and what they were fitted to."""

    reported: _Reported
    measured: SpeedData
    """The part of it that its speeds are a function of: losses are reported more often than what changes speeds."""
    models: Fitted


class Fits:
    """Fits models, and keeps the last ones of each job, until it is told which jobs are left (`keep_only`).

    A job without new reports is recognised by its earlier ones, which mostly is the very same values. Threads may share
    it: the models of a job are replaced as a whole, with what they were fitted to.
    """

    def __init__(self) -> None:
        self._priors = LossPriors()
        self._known: dict[str, _Known] = {}

    def of(self, jobs: Sequence[Job], settings: Settings) -> list[Fitted]:
        """The models of each job."""
        reported = [_Reported.by(job, settings) for job in jobs]
        known = {job.id: self._known.get(job.id) for job in jobs}
        found = {
            job.id: before
            for job, each in zip(jobs, reported, strict=True)
            if (before := known[job.id]) is not None and before.reported == each
        }
        new = [(job, each) for job, each in zip(jobs, reported, strict=True) if job.id not in found]
        if new:
            measured = [SpeedData.of(job, settings) for job, _ in new]
            fitted = self._fitted([job for job, _ in new], measured, self._known_step_times(new, settings))
            found |= {
                job.id: _Known(each, data, models)
                for (job, each), data, models in zip(new, measured, fitted, strict=True)
            }
            self._known |= found
        return [found[job.id].models for job in jobs]

    def keep_only(self, job_ids: Container[str]) -> None:
        """Forget all other jobs."""
        for job_id in list(self._known):
            if job_id not in job_ids:
                self._known.pop(job_id, None)

    def _known_step_times(self, new: Sequence[tuple[Job, _Reported]], settings: Settings) -> dict[SpeedData, StepTimes]:
        found: dict[SpeedData, StepTimes] = {}
        for job, reported in new:
            before = self._known.get(job.id)
            model = before.models.speeds.model if before is not None else None
            if before is not None and isinstance(model, Goodput) and before.reported.step_times == reported.step_times:
                found[without_noise(SpeedData.of(job, settings))] = model.times
        return found

    def _fitted(
        self, jobs: Sequence[Job], measured: Sequence[SpeedData], step_times: Mapping[SpeedData, StepTimes]
    ) -> list[Fitted]:
        """Jobs with equal reports share their models."""
        curves = self._loss_curves(jobs)
        speeds = self._speeds(jobs, measured, step_times)
        asked = [_metric(job) for job in jobs]
        metrics = {each: fit_metric(*each) for each in dict.fromkeys(asked) if each is not None}
        return [
            Fitted(curve, speed, None if metric is None else metrics[metric], _numbers_of(curve), lengths_of(job))
            for job, curve, speed, metric in zip(jobs, curves, speeds, asked, strict=True)
        ]

    def _speeds(
        self, jobs: Sequence[Job], measured: Sequence[SpeedData], step_times: Mapping[SpeedData, StepTimes]
    ) -> list[Speeds]:
        """Those of before where what they are fitted to has not changed; the very same of jobs that measured the same.
        Data is hashed once, and only where it is new: that takes a look at all samples."""
        known: dict[SpeedData, Speeds] = {}
        found = []
        for job, data in zip(jobs, measured, strict=True):
            before = self._known.get(job.id)
            if before is not None and before.measured == data:
                found.append(before.models.speeds)
                continue
            speeds = known.get(data)
            if speeds is None:
                speeds = known[data] = fit_speeds(data, step_times)
            found.append(speeds)
        return found

    def _loss_curves(self, jobs: Sequence[Job]) -> list[LossCurve]:
        """In one batch: fitted one by one they would take ten times as long."""
        priors = [self._priors.of(job) for job in jobs]
        # The prior of each key lives as long as this call, so its number in memory means no other.
        keys = [
            ((job.loss_steps, job.losses), 0 if prior is None else id(prior), _rates(job))
            for job, prior in zip(jobs, priors, strict=True)
        ]
        different = dict(zip(keys, zip(jobs, priors, strict=True), strict=True))
        histories = [LossHistory.of(*points) for points, _, _ in different]
        schedules = [rate_schedule(job) for job, _ in different.values()]
        fitted = LossCurve.fit_many(histories, priors=[prior for _, prior in different.values()], schedules=schedules)
        curves = dict(zip(different, fitted, strict=True))
        return [curves[key] for key in keys]


def _rates(job: Job) -> _Rates:
    return (job.rate_steps, job.learning_rates), (job.planned_rate_steps, job.planned_rates)


def _numbers_of(curve: LossCurve) -> dict[str, float]:
    if curve.n_points == 0:
        return {}
    names = ("beta0", "beta1", "beta2", "scale", "offset", "residual", "confidence")
    return {name: float(getattr(curve, name)) for name in names}


def fit_metric(points: _Points, target: MetricTarget) -> MetricCurve:
    """The curve of a metric that is to reach `target`."""
    steps, values = points
    return MetricCurve.fit(steps, values, best=_best(values, target))


def _best(values: Sequence[float], target: MetricTarget) -> float | None:
    """What a rising metric rises to; None for one that falls."""
    if target.at_least is None:
        return None
    if target.best is not None:
        return target.best
    largest = max((*values, target.at_least))
    return next((scale for scale in (1.0, 100.0) if largest <= scale), 2.0 * largest)


def _metric(job: Job) -> _Metric | None:
    target = job.spec.convergence.target_metric
    return None if target is None else ((job.metric_steps, job.metric_values), target)
