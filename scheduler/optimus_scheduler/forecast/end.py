"""When a job ends: the steps that it will make, by its rule, its curve, and what it announced or earlier runs did."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from optimus_models.calibration import AS_PREDICTED, Widening
from optimus_models.convergence import LEAST_POINTS, Rule, convergence_step, has_converged, whole_steps
from optimus_models.cost import Estimate
from optimus_models.loss.ends import Prediction
from optimus_scheduler.forecast.alike_runs import steps_left_like_alike_runs
from optimus_scheduler.forecast.fits import Fitted
from optimus_scheduler.forecast.precedents import (
    confidence,
    early_ends,
    may_end_by_curve,
    precedents,
    with_early_ends,
    with_precedents,
    with_same_runs,
)
from optimus_scheduler.forecast.prices import cost_per_second, seconds_paid
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.forecast.time_left import LINDY, beyond_announced, correction, widened
from optimus_scheduler.forecast.uneven_epochs import with_uneven_epochs
from optimus_scheduler.model import BY_CLOCK, ConvergenceRule, Directive, Interval, Job, JobState
from optimus_scheduler.settings import Settings

_LINDY_CONFIDENCE = 0.05
"""Confidence of such a guess: next to nothing."""
_ENFORCED_BY_COORDINATOR = ("max_steps", "max_epochs")
"""Limits that the job's coordinator keeps to the step by itself."""
_BY_CURVE = ("loss_decrease", "target_loss", "target_metric")
"""What a job has learned. A job without tasks has nothing to finish with: these are looked at when it goes on."""


class End(NamedTuple):
    """What is predicted of a job's steps. No clock plays a part in it, but for limits of time and money."""

    prediction: Prediction | None
    remaining: Interval | None
    by_steps: Widening
    total: Interval | None
    confidence: float
    rule: str | None
    """The part of the rule that holds, or is predicted to hold first."""
    is_here: bool
    loss_curve: Mapping[str, float]
    asked: tuple[object, ...]
    """What it depended on, see `inputs_of_end`."""

    @classmethod
    def of(cls, job: Job, fitted: Fitted, use: Use, settings: Settings) -> End:
        whole, epoch = rule_of(job), epoch_steps(job)
        limit = step_limit(whole, epoch)
        if job.spec.tracked:
            whole = _yet_to_hold(job, whole, fitted, use, settings)
        holds = None if job.spec.tracked else _converged_by(job, whole, fitted, use, settings)
        prediction = None if has_made_all(job) else _predict_total(job, whole, epoch, fitted, use)
        if prediction is not None and _ends_before_its_clock(job, prediction, epoch):
            prediction = None  # as without these limits: what alike runs made is told, and bounded by them
        prediction = _not_before_it_is_judged(job, prediction, settings)
        remaining, by_steps = _remaining_steps(job, prediction, limit)
        is_here = holds is not None or job.directive is Directive.FINISH
        if is_here:
            remaining = Interval(0.0, 0.0, 0.0)
        return cls(
            prediction,
            remaining,
            by_steps,
            None if remaining is None else _shifted(remaining, job.step),
            _confidence(job, fitted, prediction),
            holds or _what_ends(job, whole, limit, prediction, remaining),
            is_here,
            fitted.curve_numbers,
            inputs_of_end(job),
        )


inputs_of_end = attrgetter(
    "state", "step", "steps_per_epoch", "epochs", "directive", "experience.task", "experience.steps"
)
"""Of a job all that its end depends on beside its models, where no limit of time or money does."""


class Ends:
    """The last end of each job, until it is told which jobs are left (`keep_only`): as long as nothing has changed that
    it depends on, it is not predicted anew. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Fitted, Settings, End]] = {}

    def of(self, job: Job, fitted: Fitted, use: Use, settings: Settings) -> End:
        """See `End.of`."""
        if job.spec.convergence.has_clock:
            return End.of(job, fitted, use, settings)
        before = self._known.get(job.id)
        if before is not None:
            of, under, end = before
            is_same = of is fitted and (under is settings or under == settings)
            if is_same and end.asked == inputs_of_end(job):
                return end
        end = End.of(job, fitted, use, settings)
        self._known[job.id] = fitted, settings, end
        return end

    def keep_only(self, job_ids: Container[str]) -> None:
        """Forget all other jobs."""
        for job_id in list(self._known):
            if job_id not in job_ids:
                self._known.pop(job_id, None)


def _what_ends(
    job: Job, rule: Rule, limit: float, prediction: Prediction | None, remaining: Interval | None
) -> str | None:
    """The part of the rule that is predicted to hold first; `command_ends` where a script ends by itself.

    By the end that is told: where that is the limit, it is the limit that ends the job, and nowhere else.
    """
    if prediction is None:
        return None
    name = prediction.rule
    if remaining is not None and limit < math.inf and name not in BY_CLOCK:
        if job.step + remaining.mean >= limit - 0.5:  # at the limit
            name = "max_steps" if rule.max_steps is not None and limit == rule.max_steps else "max_epochs"
        elif name in ("max_steps", "max_epochs"):
            name = next((each for each in _BY_LOSS if getattr(rule, each) is not None), name)
    return "command_ends" if name == "max_steps" and job.spec.convergence.ends_itself else name


_JUDGED_BY_LOSSES = ("target_loss", "loss_decrease")
_BY_LOSS = ("target_metric", "target_loss", "loss_decrease")


class Use(NamedTuple):
    """What a job has used so far, and at which rate it goes on."""

    elapsed_seconds: float
    spent: float
    speed: Estimate | None
    """Steps/s; None without tasks, or when nothing is measured."""
    steps_per_second: float | None
    """The same, or what was calculated, by which no time is predicted."""
    cost_per_second: float | None
    """None without prices, or without tasks."""
    has_price: bool
    """Whether anything costs anything."""
    seconds_paid: float = math.inf
    """How long what is left of its limit of money pays for what the job has; inf: no such limit, or no tasks."""
    steps_paid: float = math.inf
    """Of a job without tasks: what is left pays for so many, at its minimum; inf: no such limit, or it is not known."""

    @classmethod
    def of(cls, job: Job, speeds: Speeds, now: float, settings: Settings, has_price: bool) -> Use:
        elapsed = now - job.started_at if job.started_at is not None else 0.0
        if job.allocation.is_empty:
            steps_paid = _steps_paid(job, speeds, settings)
            return cls(elapsed, job.spent, None, None, None, has_price, steps_paid=steps_paid)
        speed = speeds.estimate(job.allocation) if speeds.is_measured else None
        calculated = speeds.at(job.allocation) if speeds.is_known else None
        price = cost_per_second(job.spec, job.allocation, settings) if has_price else None
        steps_per_second = calculated if speed is None else speed.mean
        paid = seconds_paid(job, settings)
        return cls(elapsed, job.spent, speed, steps_per_second, price, has_price, paid)


def _steps_paid(job: Job, speeds: Speeds, settings: Settings) -> float:
    """See `Use`."""
    if job.spec.convergence.max_cost is None or not speeds.is_measured:
        return math.inf
    return seconds_paid(job, settings) * speeds.at(job.spec.smallest)


def _predict_total(job: Job, rule: Rule, epoch: float | None, fitted: Fitted, use: Use) -> Prediction | None:
    """`epoch`: steps of one, if known."""
    own = convergence_step(
        fitted.curve,
        rule,
        steps_per_epoch=epoch,
        now_step=job.step,
        elapsed_seconds=use.elapsed_seconds,
        steps_per_second=use.steps_per_second,
        spent=use.spent,
        cost_per_second=use.cost_per_second,
        metric=fitted.metric,
    )
    by_precedents = with_precedents(job, epoch, with_uneven_epochs(job, own, fitted.lengths))
    return _within_budget(job, with_early_ends(job, with_same_runs(job, epoch, by_precedents)), use.steps_paid)


def _within_budget(job: Job, end: Prediction | None, steps_paid: float) -> Prediction | None:
    """No later than what is left of the limit of money of a job without tasks lets it come."""
    latest = job.step + steps_paid
    if end is None or end.high <= latest:
        return end
    by = end.rule if end.mean <= latest else "max_cost"
    return Prediction(min(end.mean, latest), min(end.low, latest), latest, by)


def _ends_before_its_clock(job: Job, own: Prediction, epoch: float | None) -> bool:
    """Whether only a limit of time or money was found to end a job, and ended runs like it tell that it ends by itself
    before that."""
    if own.rule not in BY_CLOCK or may_end_by_curve(job) or not job.similar:
        return False
    # A run that such a limit ended would have gone on.
    unlimited = job.spec.convergence.without_clock
    left = steps_left_like_alike_runs(replace(job, spec=replace(job.spec, convergence=unlimited)), epoch)
    return left is not None and job.step + left.mean < own.mean


def _not_before_it_is_judged(job: Job, end: Prediction | None, settings: Settings) -> Prediction | None:
    """An end by the loss, not before the step at which there are enough losses to judge by (`has_converged`).

    They go on coming as far apart as those that there are: a fast job makes many epochs between two.
    """
    n_losses = len(job.losses)
    if end is None or end.rule not in _JUDGED_BY_LOSSES or not 2 <= n_losses < settings.convergence_points:
        return end
    apart = (job.loss_steps[-1] - job.loss_steps[0]) / (n_losses - 1)
    soonest = job.loss_steps[-1] + (settings.convergence_points - n_losses) * apart
    return end._replace(mean=max(end.mean, soonest), low=max(end.low, soonest), high=max(end.high, soonest))


def epoch_steps(job: Job) -> float | None:
    """Steps of an epoch: from the job, or before its first report from the newest ended job of the same task."""
    if job.steps_per_epoch is not None or not job.similar:
        return job.steps_per_epoch
    batch = job.spec.counted_batch
    known = [ended for ended in reversed(job.similar) if ended.steps_per_epoch]
    newest = next((ended for ended in known if ended.global_batch_size == batch), known[0] if known else None)
    if newest is None or newest.steps_per_epoch is None:
        return None
    if not (batch and newest.global_batch_size):
        return newest.steps_per_epoch
    return newest.steps_per_epoch * newest.global_batch_size / batch


def rule_of(job: Job) -> Rule:
    """The job's rule as the models read it."""
    return as_rule(job.spec.convergence)


@lru_cache(maxsize=4096)
def as_rule(rule: ConvergenceRule) -> Rule:
    """A rule as the models read it."""
    return Rule(
        loss_decrease=rule.loss_decrease,
        relative=rule.relative,
        patience_epochs=rule.patience_epochs,
        target_loss=rule.target_loss,
        max_steps=rule.max_steps,
        max_epochs=rule.max_epochs,
        max_seconds=rule.max_seconds,
        target_metric=None if rule.target_metric is None else rule.target_metric.value,
        max_cost=rule.max_cost,
    )


def _remaining_steps(job: Job, prediction: Prediction | None, limit: float) -> tuple[Interval | None, Widening]:
    """With how it was corrected. `limit`: steps after which it ends in any case."""
    most = max(limit - job.step, 0.0)
    if job.spec.announced_steps is not None and has_made_all(job):
        return _corrected_steps(job, beyond_announced(job.spec.announced_steps, job.step, most), most)
    if prediction is None:
        lindy = Interval(job.step, job.step / LINDY, job.step * LINDY) if job.step > 0 else None
        return lindy, AS_PREDICTED
    return _corrected_steps(job, _shifted(prediction, -job.step), most)


def _corrected_steps(job: Job, left: Interval, most: float) -> tuple[Interval, Widening]:
    by = correction(job.experience.steps, job.experience.task, life_of(job, left), left)
    return widened(left, by, most), by


def has_made_all(job: Job) -> bool:
    """Whether it goes on after all steps that it announced, and no loss or metric says when it ends."""
    return job.spec.announced_steps is not None and not may_end_by_curve(job)


def has_reached_its_limit(job: Job) -> bool:
    """Whether it has made all steps or epochs of its limit, which ends it."""
    return not job.spec.tracked and job.step >= step_limit(rule_of(job), epoch_steps(job))


def life_of(job: Job, left: Interval) -> float:
    """The part of its steps that a job has made, if so many are left."""
    total = job.step + left.mean
    return job.step / total if 0 < total < math.inf else 0.0


def step_limit(rule: Rule, steps_per_epoch: float | None) -> float:
    """Steps after which the job ends in any case; inf without a limit."""
    by_epochs = math.inf
    if rule.max_epochs is not None and steps_per_epoch:
        by_epochs = whole_steps(rule.max_epochs * steps_per_epoch)
    return min(by_epochs, math.inf if rule.max_steps is None else float(rule.max_steps))


def _holds_now(job: Job, rule: Rule, fitted: Fitted, use: Use, settings: Settings) -> str | None:
    """The part of the rule that holds now; None: none does."""
    return has_converged(
        fitted.curve,
        rule,
        steps_per_epoch=job.steps_per_epoch,
        now_step=job.step,
        elapsed_seconds=use.elapsed_seconds,
        spent=use.spent if use.has_price else 0.0,
        metric=fitted.metric,
        least_points=settings.convergence_points,
    )


def _converged_by(job: Job, rule: Rule, fitted: Fitted, use: Use, settings: Settings) -> str | None:
    """The part of the rule that holds now; None otherwise, and for limits that the coordinator keeps by itself.

    One of an earlier release knows those with which it began: it trains on until it is told.
    """
    holds = _holds_now(job, rule, fitted, use, settings)
    if job.state is JobState.PAUSED and holds in _BY_CURVE:
        return None  # after an error it goes on from a checkpoint, and makes the steps anew that the rule would count
    return None if holds in _ENFORCED_BY_COORDINATOR and not _is_far_beyond_its_limit(job) else holds


def _yet_to_hold(job: Job, rule: Rule, fitted: Fitted, use: Use, settings: Settings) -> Rule:
    """The rule of a job outside the cluster, which nothing ends, without what holds already: that says nothing of its
    end any more. Its limits of steps stay; one that it has passed is not in its specification."""
    rest = replace(rule, max_steps=None, max_epochs=None)
    while (holds := _holds_now(job, rest, fitted, use, settings)) is not None:
        held: dict[str, Any] = {holds: None}
        rest = replace(rest, **held)
    return replace(rest, max_steps=rule.max_steps, max_epochs=rule.max_epochs)


_BEYOND = 1.01
"""A limit of epochs is known in steps about as well as this, and the last step may pass it by a part of a large one."""


def _is_far_beyond_its_limit(job: Job) -> bool:
    if job.state is not JobState.RUNNING or job.spec.convergence.ends_itself:
        return False
    limit, elastic = step_limit(rule_of(job), epoch_steps(job)), job.spec.elastic_batch
    slack = 1 if elastic is None else elastic.maximum // elastic.minimum
    return job.step > _BEYOND * limit + slack


def _confidence(job: Job, fitted: Fitted, prediction: Prediction | None) -> float:
    if prediction is None:
        return _LINDY_CONFIDENCE if job.step > 0 else 0.0
    if not may_end_by_curve(job):
        # A number of steps or epochs that the owner fixed, or that a command announces.
        return confidence(len(early)) if (early := early_ends(job).parts) else 1.0
    by_metric = prediction.rule == "target_metric" and fitted.metric is not None
    own = fitted.metric.confidence if by_metric and fitted.metric is not None else fitted.curve.confidence
    return max(own, confidence(len(precedents(job)))) if fitted.curve.n_points < LEAST_POINTS else own


def _shifted(interval: Interval | Prediction, steps: float) -> Interval:
    return Interval(max(interval.mean + steps, 0.0), max(interval.low + steps, 0.0), max(interval.high + steps, 0.0))
