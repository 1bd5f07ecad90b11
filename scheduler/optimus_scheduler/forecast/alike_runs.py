"""How many steps a job takes that has told nothing yet from which its end follows: as many as runs like it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from optimus_models.arguments import named_count, naming, predicted
from optimus_models.convergence import LEAST_POINTS
from optimus_models.loss.curve import LossCurve
from optimus_scheduler.forecast.censoring import Length, is_whole, quantiles, weighed
from optimus_scheduler.forecast.cold_start import device_name
from optimus_scheduler.forecast.precedents import epochs_for, may_end_by_curve, with_belief
from optimus_scheduler.forecast.time_left import given_not_ended
from optimus_scheduler.model import BY_CLOCK, REACH, ConvergenceRule, EndedJob, Interval, Job, MetricTarget


def steps_of_alike_runs(job: Job, steps_per_epoch: float | None) -> Interval | None:
    """Steps in all, by the epochs of ended jobs of the same task, or by their steps where none told epochs; None where
    none has ended, or epochs are told and nothing is known of one.

    The middle one of them, from the 10th percentile to the 90th; one alone says little, so its number is halved and
    doubled. Of a script all, where they made as many as one of their arguments says, as if they had made as many as the
    job's says; else those with the same arguments; where there are none, by how much others differed. Of a job that
    a loss or a figure is to end, see `_steps_under`. Runs that a rule ended which the job has not say only that it
    takes longer (`censoring`): None where all did.
    """
    found = [(ended, told) for ended in job.similar if (told := _steps_under(job, ended)) and told.steps > 0]
    lengths = [
        (ended.arguments, Length(math.log(told.steps / ended.steps_per_epoch), told.is_whole))
        for ended, told in found
        if ended.loss_steps and ended.steps_per_epoch
    ]
    if not lengths:
        lengths = [
            (ended.arguments, Length(math.log(told.steps), told.is_whole))
            for ended, told in found
            if ended.total_steps > 0
        ]
        steps_per_epoch = 1.0
    whole = [(arguments, length.log) for arguments, length in lengths if length.is_whole]
    if not whole or not steps_per_epoch:
        return None
    alike = [length for arguments, length in lengths if arguments == job.spec.arguments]
    is_repeated, count = any(length.is_whole for length in alike), _named(job.spec.arguments, whole)
    if count is not None and (is_repeated or not alike):  # all runs tell of it, not these alone
        by_runs = _by_alike([Length(math.log(count), is_whole=True)] * len(whole))
    elif is_repeated:
        by_runs = _by_alike(alike)
    else:
        mean, sigma = predicted(job.spec.arguments, whole)
        middle, low, high = (math.exp(mean + sigma * reach) for reach in (0.0, -REACH, REACH))
        longest = max((math.exp(length.log) for length in alike), default=0.0)
        by_runs = given_not_ended(Interval(middle, low, high), 0.0, longest)
    return Interval(*(each * steps_per_epoch for each in by_runs))


def _named(arguments: tuple[str, ...], whole: Sequence[tuple[tuple[str, ...], float]]) -> float | None:
    """How many epochs, or steps, the job's arguments say that it makes, where those of all ended runs said it of them
    (arguments of each, and the logarithm of how many)."""
    counts = [(theirs, math.exp(log)) for theirs, log in whole]
    return named_count(arguments, naming(counts))


def _by_alike(lengths: Sequence[Length]) -> Interval:
    """Of a further run like these, one of which at least is whole."""
    found = weighed(lengths)
    if len(found.logs) == 1:
        alone = math.exp(found.logs[0])
        return Interval(alone, 0.5 * alone, 2.0 * alone)
    low, middle, high = map(math.exp, quantiles(found, (0.1, 0.5, 0.9)))
    if found.is_open:
        high = max(high, 2.0 * math.exp(found.logs[-1]))
    return Interval(middle, low, high)


class _Told(NamedTuple):
    """After how many steps the job's rule would have ended a run."""

    steps: float
    is_whole: bool
    """False: after more."""


def _steps_under(job: Job, ended: EndedJob) -> _Told | None:
    """After how many steps the job's rule ended this run or would have; None: the run does not tell.

    Of a job that a loss or a figure is to end, runs with the same rule tell; before its own losses say more, those as
    well that came to its loss, to the same figure, or to another decrease of the loss. A limit tells nothing of these.
    """
    rule, theirs = job.spec.convergence, ended.rule
    whole, epochs = float(ended.total_steps), epochs_for(job.spec.arguments, ended)
    if ended.loss_steps and ended.steps_per_epoch:
        whole = ended.loss_steps[-1] if epochs == ended.n_epochs else epochs * ended.steps_per_epoch
    if theirs is None or theirs == rule or not may_end_by_curve(job):
        return _Told(whole, is_whole(ended, rule))
    if len(job.losses) >= LEAST_POINTS:
        return None
    by_epochs = theirs.max_epochs is not None and ended.n_epochs >= theirs.max_epochs
    by_limit = by_epochs or (theirs.max_steps is not None and ended.total_steps >= theirs.max_steps)
    if _awaited(theirs) == _awaited(rule) and not by_limit and ended.ended_by not in BY_CLOCK:
        return _Told(whole, is_whole=True)
    if _awaited(rule) == (False, rule.target_loss, None) and rule.target_loss is not None:
        reached = _step_of_loss(ended.loss_steps, ended.losses, rule.target_loss)
        return None if reached is None else _Told(reached, is_whole=True)
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
    """Seconds in all of a job that has told no step, or too few to measure a speed, by ended ones that told no more:
    those with the same arguments, size and device. None where the newest run with its arguments did tell more, or a
    limit ended all of them that the job has not.
    """
    if job.speed_samples:
        return None
    same = [ended for ended in job.similar if ended.arguments == job.spec.arguments]
    if not same or same[-1].silent is None:
        return None
    device, least = device_name(job.spec), (job.spec.worker.minimum, job.spec.server.minimum)
    size = least if job.allocation.is_empty else (job.allocation.workers, job.allocation.servers)
    lengths = [
        Length(math.log(ended.silent.seconds), is_whole(ended, job.spec.convergence))
        for ended in same
        if ended.silent is not None
        and ended.silent.seconds > 0
        and (ended.silent.workers, ended.silent.servers) == size
        and ended.device == device
    ]
    return _log_normal(lengths) if any(each.is_whole for each in lengths) else None


def report_seconds_of_alike_runs(similar: Sequence[EndedJob], arguments: tuple[str, ...]) -> float:
    """Seconds between two reports of steps, as the newest run with these arguments told them; 0: not known."""
    return next((each.report_seconds for each in reversed(similar) if each.arguments == arguments), 0.0)


def busy_part_with_alike_runs(
    busy_seconds: float, seconds: float, similar: Sequence[EndedJob], arguments: tuple[str, ...]
) -> float:
    """Part of its time that a job spends in steps, which did so for `busy_seconds` of its `seconds` until now; 1 where
    nothing is known.

    Before its first evaluation nothing tells of those to come but ended runs: those with the same arguments, or all of
    its task where there are none, count as one that it has behind it.
    """
    known = [each for each in similar if each.reported_seconds > 0]
    runs = [each for each in known if each.arguments == arguments] or known
    if runs:
        busy_seconds += sum(each.busy_seconds for each in runs) / len(runs)
        seconds += sum(each.reported_seconds for each in runs) / len(runs)
    return busy_seconds / seconds if seconds >= _LEAST_SEEN_SECONDS else 1.0


_LEAST_SEEN_SECONDS = 1.0


def seconds_after_steps_of_alike_runs(job: Job) -> Interval | None:
    """Seconds from the last step of a command that ends by itself to its end, in which it saves or evaluates, by ended
    runs with the same arguments; None where there are none, or the job is ended by another rule."""
    rule = job.spec.convergence
    if may_end_by_curve(job) or rule.max_epochs is not None or not (rule.max_steps is None or rule.ends_itself):
        return None
    seconds = [each.seconds_after_steps for each in job.similar if each.arguments == job.spec.arguments]
    lengths = [Length(math.log(max(each, _LEAST_SECONDS))) for each in seconds if each is not None]
    return _log_normal(lengths) if lengths else None


_LEAST_SECONDS = 0.1
"""Reports come no more exactly than that."""


def _log_normal(lengths: Sequence[Length]) -> Interval:
    """Beside these, what is believed of the spread before (`precedents`)."""
    found = weighed(lengths)
    mean, spread = with_belief(found.logs, weights=found.weights)
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
