"""How many steps a job takes that has told nothing yet from which its end follows: as many as runs like it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from optimus_models.arguments import predicted
from optimus_models.convergence import LEAST_POINTS
from optimus_models.loss.curve import LossCurve
from optimus_scheduler.forecast.cold_start import device_name
from optimus_scheduler.forecast.end import may_end_by_curve
from optimus_scheduler.forecast.precedents import with_belief
from optimus_scheduler.forecast.time_left import given_not_ended
from optimus_scheduler.model import REACH, ConvergenceRule, EndedJob, Interval, Job, MetricTarget


def steps_of_alike_runs(job: Job, steps_per_epoch: float | None) -> Interval | None:
    """Steps in all, by the epochs of ended jobs of the same task, or by their steps where none told epochs; None where
    none has ended, or epochs are told and nothing is known of one.

    The middle one of them, from the 10th percentile to the 90th; one alone says little, so its number is halved and
    doubled. Of a script those with the same arguments; where there are none, by how much others differed. Of a job that
    a loss or a figure is to end, see `_steps_under`.
    """
    found = [(ended, steps) for ended in job.similar if (steps := _steps_under(job, ended))]
    lengths = [
        (ended.arguments, math.log(steps / ended.steps_per_epoch))
        for ended, steps in found
        if ended.loss_steps and ended.steps_per_epoch
    ]
    if not lengths:
        lengths = [(ended.arguments, math.log(steps)) for ended, steps in found if ended.total_steps > 0]
        steps_per_epoch = 1.0
    if not lengths or not steps_per_epoch:
        return None
    alike = [value for arguments, value in lengths if arguments == job.spec.arguments]
    if len(alike) > 1:
        low, middle, high = np.exp(np.quantile(alike, (0.1, 0.5, 0.9)))
    elif alike:
        low, middle, high = math.exp(alike[0]) * np.array([0.5, 1, 2])
    else:
        mean, sigma = predicted(job.spec.arguments, lengths)
        low, middle, high = np.exp(mean + sigma * np.array([-REACH, 0.0, REACH]))
    return Interval(*(float(each) * steps_per_epoch for each in (middle, low, high)))


def _steps_under(job: Job, ended: EndedJob) -> float | None:
    """After how many steps the job's rule ended this run or would have; None: the run does not tell.

    Of a job that a loss or a figure is to end, runs with the same rule tell; before its own losses say more, those as
    well that came to its loss, to the same figure, or to another decrease of the loss. A limit tells nothing of these.
    """
    rule, theirs = job.spec.convergence, ended.rule
    whole = ended.loss_steps[-1] if ended.loss_steps and ended.steps_per_epoch else float(ended.total_steps)
    if theirs is None or theirs == rule or not may_end_by_curve(job):
        return whole
    if len(job.losses) >= LEAST_POINTS:
        return None
    by_epochs = theirs.max_epochs is not None and ended.n_epochs >= theirs.max_epochs
    by_limit = by_epochs or (theirs.max_steps is not None and ended.total_steps >= theirs.max_steps)
    if _awaited(theirs) == _awaited(rule) and not by_limit:
        return whole
    if _awaited(rule) == (False, rule.target_loss, None) and rule.target_loss is not None:
        return _step_of_loss(ended.loss_steps, ended.losses, rule.target_loss)
    return None


@lru_cache(maxsize=1024)
def _step_of_loss(steps: tuple[float, ...], losses: tuple[float, ...], target: float) -> float | None:
    """The step at which the fitted loss of a run came to `target`; None: it did not, or too few losses tell."""
    if len(losses) < LEAST_POINTS:
        return None
    below = np.flatnonzero(LossCurve.fit(steps, losses).predict_alone(steps) <= target)
    return steps[below[0]] if len(below) else None


def _awaited(rule: ConvergenceRule) -> tuple[bool, float | None, MetricTarget | None]:
    """What a rule waits for in the course of training, whatever the size of the decrease of the loss."""
    return rule.loss_decrease is not None, rule.target_loss, rule.target_metric


def seconds_of_silent_runs(job: Job) -> Interval | None:
    """Seconds in all of a job that has told no step, by ended ones that told none either: those with the same
    arguments, size and device. None where the newest run with its arguments did tell steps.
    """
    if job.step > 0 or job.speed_samples:
        return None
    same = [ended for ended in job.similar if ended.arguments == job.spec.arguments]
    if not same or same[-1].silent is None:
        return None
    device, least = device_name(job.spec), (job.spec.worker.minimum, job.spec.server.minimum)
    size = least if job.allocation.is_empty else (job.allocation.workers, job.allocation.servers)
    logs = [
        math.log(ended.silent.seconds)
        for ended in same
        if ended.silent is not None
        and ended.silent.seconds > 0
        and (ended.silent.workers, ended.silent.servers) == size
        and ended.device == device
    ]
    return _log_normal(logs) if logs else None


def seconds_after_steps_of_alike_runs(job: Job) -> Interval | None:
    """Seconds from the last step of a command that ends by itself to its end, in which it saves or evaluates, by ended
    runs with the same arguments; None where there are none, or the job is ended by another rule."""
    rule = job.spec.convergence
    if may_end_by_curve(job) or rule.max_epochs is not None or not (rule.max_steps is None or rule.ends_itself):
        return None
    seconds = [each.seconds_after_steps for each in job.similar if each.arguments == job.spec.arguments]
    logs = [math.log(max(each, _LEAST_SECONDS)) for each in seconds if each is not None]
    return _log_normal(logs) if logs else None


_LEAST_SECONDS = 0.1
"""Reports come no more exactly than that."""


def _log_normal(logs: list[float]) -> Interval:
    """Beside these, what is believed of the spread before (`precedents`)."""
    mean, spread = with_belief(logs)
    return Interval(math.exp(mean), math.exp(mean - REACH * spread), math.exp(mean + REACH * spread))


def seconds_like_ended_runs(job: Job, steps_per_epoch: float | None, speed: float | None) -> float | None:
    """Seconds that are left of a job which has told nothing by itself from which its end follows, as ended runs like it
    tell; None where these tell nothing, either. `speed`: steps/s at its minimum; None: not known."""
    silent = seconds_of_silent_runs(job)
    if silent is not None:
        return silent.mean
    left = steps_left_like_alike_runs(job, steps_per_epoch) if speed else None
    return None if left is None or not speed else left.mean / speed


def steps_left_like_alike_runs(job: Job, steps_per_epoch: float | None) -> Interval | None:
    """The same less the steps that it has made, given that it has not ended with them."""
    total = steps_of_alike_runs(job, steps_per_epoch)
    if total is None:
        return None
    left = given_not_ended(total, 0.0, job.step)
    return Interval(*(max(each - job.step, 0.0) for each in (left.mean, left.low, left.high)))
