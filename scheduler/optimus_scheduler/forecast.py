"""Step 1 of a round: what each job will do, from what it told so far.

Every question has an answer. What cannot be predicted yet is assumed by a stated rule:

| what is missing | rule |
|---|---|
| steps left, no limit given | as many again as it has done (Lindy), from a ninth to nine times that |
| steps left, a limit given | the limit at face value, with that lower bound |
| speed, nothing measured | none; the job keeps its minimum until there is |
| cost of a change | the prior of `RescaleCost` |
"""

from __future__ import annotations

from collections.abc import Sequence

from optimus_models.convergence import LEAST_POINTS, Prediction, convergence_step, has_converged
from optimus_models.loss_curve import LossCurve
from optimus_models.rescale import RescaleCost
from optimus_models.speed_model import SpeedModel
from optimus_scheduler.fits import Fits
from optimus_scheduler.outlook import Outlook
from optimus_scheduler.settings import Settings
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import Directive, Forecast, Interval, Job, JobState

_LINDY = 9.0
"""P(T > t) = s/(s + t) for a job that has done s: the median is s more, 10 % and 90 % are s/9 and 9s more."""
_LINDY_CONFIDENCE = 0.05
"""Confidence of such a guess: next to nothing."""
_ENFORCED_BY_COORDINATOR = ("max_steps", "max_epochs")
"""Limits that the job's coordinator keeps to the step by itself."""


class RememberingForecaster:
    """Forecasts, remembering the fits of the call before: a job that told nothing new is not fitted again.

    Gives what `forecast_all` gives, sooner. Belongs to one shell; not to be shared between threads.
    """

    def __init__(self) -> None:
        self._fits = Fits()

    def __call__(self, jobs: Sequence[Job], now: float, settings: Settings) -> tuple[Outlook, ...]:
        """The outlook of every job, sorted by job id."""
        ordered = sorted(jobs, key=lambda job: job.id)
        fits = self._fits.of(ordered, settings)
        return tuple(
            _outlook(job, curve, speeds, now, settings) for job, (curve, speeds) in zip(ordered, fits, strict=True)
        )


def forecast_all(jobs: Sequence[Job], now: float, settings: Settings) -> tuple[Outlook, ...]:
    """The outlook of every job, sorted by job id."""
    return RememberingForecaster()(jobs, now, settings)


def forecast(job: Job, now: float, settings: Settings) -> Outlook:
    """Fit the models of one job and predict its end."""
    return forecast_all([job], now, settings)[0]


def _outlook(job: Job, curve: LossCurve, speeds: Speeds, now: float, settings: Settings) -> Outlook:
    return Outlook(
        job=job,
        forecast=_forecast(job, now, curve, speeds, settings),
        speeds=speeds,
        stop_seconds=RescaleCost.fit(job.rescale_seconds).predict(),
        waited_seconds=_waited_seconds(job, now),
        measured=_is_measured(job, now, settings),
        learning=speeds.model.confidence < settings.sure_speed,
        typical_seconds=settings.typical_seconds,
    )


def _forecast(job: Job, now: float, curve: LossCurve, speeds: Speeds, settings: Settings) -> Forecast:
    elapsed = now - job.started_at if job.started_at is not None else 0.0
    speed = speeds.at(job.allocation) if speeds.model.n_points and not job.allocation.is_empty else None
    rule = _converged_by(job, curve, elapsed, settings)
    prediction = _predict_total(job, curve, elapsed, speed)
    remaining = _remaining_steps(job, curve, prediction)
    if rule is not None or job.directive is Directive.FINISH:
        remaining = Interval(0.0, 0.0, 0.0)
    return Forecast(
        job_id=job.id,
        total_steps=_shifted(remaining, job.step),
        remaining_steps=remaining,
        confidence=_confidence(job, curve, prediction),
        rule=rule or (prediction.rule if prediction else None),
        loss_curve=_describe_curve(curve),
        speed_model=_describe_speed(speeds.model),
        steps_per_second=speed,
        remaining_seconds=_seconds(remaining, speed),
        converged=rule is not None or job.directive is Directive.FINISH,
    )


# --- the end of the job ----------------------------------------------------------------------------------------------


def _predict_total(job: Job, curve: LossCurve, elapsed: float, speed: float | None) -> Prediction | None:
    return convergence_step(
        curve,
        job.spec.convergence,
        steps_per_epoch=job.steps_per_epoch,
        now_step=job.step,
        elapsed_seconds=elapsed,
        steps_per_second=speed,
    )


def _remaining_steps(job: Job, curve: LossCurve, prediction: Prediction | None) -> Interval | None:
    if prediction is None:
        return Interval(job.step, job.step / _LINDY, job.step * _LINDY) if job.step > 0 else None
    low = prediction.low
    if _may_end_by_loss(job) and curve.n_points < LEAST_POINTS:
        low = min(low, job.step + job.step / _LINDY)  # only the limit is known, and the loss may end it long before
    return _shifted(Interval(prediction.mean, low, prediction.high), -job.step)


def _converged_by(job: Job, curve: LossCurve, elapsed: float, settings: Settings) -> str | None:
    """The part of the rule that holds now; None otherwise, and for limits that the coordinator keeps by itself.

    Judged on the fitted curve, which noise hardly moves, and not before there is something to fit: neither in the
    first epoch nor on a handful of points nor on a run that has just diverged.
    """
    rule = job.spec.convergence
    if rule.max_seconds is not None and elapsed >= rule.max_seconds:
        return "max_seconds"
    if curve.n_points < settings.convergence_points or curve.confidence == 0.0:
        return None
    if job.steps_per_epoch is not None and job.step < job.steps_per_epoch:
        return None
    holds = has_converged(curve, rule, steps_per_epoch=job.steps_per_epoch, now_step=job.step)
    return None if holds in _ENFORCED_BY_COORDINATOR else holds


def _may_end_by_loss(job: Job) -> bool:
    rule = job.spec.convergence
    return rule.loss_decrease is not None or rule.target_loss is not None


def _confidence(job: Job, curve: LossCurve, prediction: Prediction | None) -> float:
    if prediction is None:
        return _LINDY_CONFIDENCE if job.step > 0 else 0.0
    if not _may_end_by_loss(job):
        return 1.0  # a number of steps or epochs that the owner fixed
    return curve.confidence


def _shifted(interval: Interval | None, steps: float) -> Interval | None:
    if interval is None:
        return None
    low, mean, high = (max(value + steps, 0.0) for value in (interval.low, interval.mean, interval.high))
    return Interval(mean, low, high)


def _seconds(remaining: Interval | None, speed: float | None) -> Interval | None:
    if remaining is None or speed is None:
        return None
    return Interval(remaining.mean / speed, remaining.low / speed, remaining.high / speed)


def _describe_curve(curve: LossCurve) -> dict[str, float]:
    if curve.n_points == 0:
        return {}
    names = ("beta0", "beta1", "beta2", "scale", "offset", "residual", "confidence")
    return {name: float(getattr(curve, name)) for name in names}


# --- speed -----------------------------------------------------------------------------------------------------------


def _describe_speed(model: SpeedModel) -> dict[str, float]:
    if model.n_points == 0:
        return {}
    return {**model.coefficients, "error": model.error, "confidence": model.confidence, "n_points": model.n_points}


def _is_measured(job: Job, now: float, settings: Settings) -> bool:
    """Whether enough steps were measured at the present size since it was granted."""
    size = (job.allocation.workers, job.allocation.servers)
    since = job.allocated_at if job.allocated_at is not None else float("-inf")
    if now - since < settings.measuring_seconds:
        return False
    here = (s.n_steps for s in job.speed_samples if (s.workers, s.servers) == size and s.at >= since)
    return sum(here) >= settings.measuring_steps


def _waited_seconds(job: Job, now: float) -> float:
    if not job.allocation.is_empty:
        return 0.0
    paused = job.state is not JobState.QUEUED and job.allocated_at is not None
    since = job.allocated_at if paused and job.allocated_at is not None else job.submitted_at
    return max(now - since, 0.0)
