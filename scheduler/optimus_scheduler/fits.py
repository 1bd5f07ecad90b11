"""The models of all jobs, fitted to their telemetry and remembered for one round: most telemetry is old.

A fit is a pure function of what was reported, so remembering it changes no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from optimus_models.finished_runs import Prior
from optimus_models.history import LossHistory
from optimus_models.loss_curve import LossCurve
from optimus_models.metric_curve import MetricCurve
from optimus_scheduler.priors import LossPriors
from optimus_scheduler.settings import Settings
from optimus_scheduler.speed_fits import SpeedData, fit_speeds
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import Job, MetricTarget

_Points = tuple[tuple[float, ...], tuple[float, ...]]
"""Steps and the value at each."""
_Losses = tuple[_Points, int]
"""... and which prior they are seen with: its number in memory, 0 without one."""
_Metric = tuple[_Points, MetricTarget]


class Fitted(NamedTuple):
    """The models of one job."""

    curve: LossCurve
    speeds: Speeds
    metric: MetricCurve | None
    """Of the metric that its convergence rule names; None without one."""


class Fits:
    """Fits models, and keeps those of the last call only: its size is that of the jobs last asked about.

    Belongs to one shell; not to be shared between threads.
    """

    def __init__(self) -> None:
        self._priors = LossPriors()
        self._curves: dict[_Losses, tuple[LossCurve, Prior | None]] = {}
        self._speeds: dict[SpeedData, Speeds] = {}
        self._metrics: dict[_Metric, MetricCurve] = {}

    def of(self, jobs: Sequence[Job], settings: Settings) -> list[Fitted]:
        """The models of each job."""
        curves = self._loss_curves(jobs)
        measured = [SpeedData.of(job, settings) for job in jobs]
        self._speeds = {each: self._speeds.get(each) or fit_speeds(each) for each in dict.fromkeys(measured)}
        metrics = [_metric(job) for job in jobs]
        self._metrics = {
            each: self._metrics.get(each) or fit_metric(*each) for each in dict.fromkeys(metrics) if each is not None
        }
        return [
            Fitted(curve, self._speeds[data], None if metric is None else self._metrics[metric])
            for curve, data, metric in zip(curves, measured, metrics, strict=True)
        ]

    def _loss_curves(self, jobs: Sequence[Job]) -> list[LossCurve]:
        """In one batch: fitted one by one they would take ten times as long."""
        self._priors.begin()
        priors = [self._priors.of(job) for job in jobs]
        # A prior lives as long as a curve that was fitted with it, so its number in memory means no other meanwhile.
        keys = [
            ((job.loss_steps, job.losses), 0 if prior is None else id(prior))
            for job, prior in zip(jobs, priors, strict=True)
        ]
        missing = {key: prior for key, prior in zip(keys, priors, strict=True) if key not in self._curves}
        histories = [LossHistory.of(*points) for points, _ in missing]
        fitted = LossCurve.fit_many(histories, priors=list(missing.values()))
        known = {key: self._curves[key] for key in keys if key in self._curves}
        self._curves = known | dict(zip(missing, zip(fitted, missing.values(), strict=True), strict=True))
        return [self._curves[key][0] for key in keys]


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
