"""The end of a job with a number of epochs that take different numbers of steps.

An epoch of most jobs is one pass over their data with one batch, and takes the same number of steps each time. Where it
is measured by progress, as in the Pollux workloads, later epochs take fewer steps: what a job says of the present one,
times the number of epochs, is several times what it will take in all. Such a job tells how many epochs it has done
(`Job.epochs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from optimus_models.loss.ends import Prediction
from optimus_scheduler.forecast.precedents import precedents
from optimus_scheduler.model import REACH, Job

_EXPONENT, _EXPONENT_SPREAD = 0.75, 0.2
"""Steps of e epochs grow like e^b. Of the applications of the Pollux profiles b is 0.5 to 0.86, and 1: all alike."""
_PRECEDENTS_SPREAD, _SPREAD_COUNT = 0.1, 2.0
"""Believed spread of the logarithm of the steps that jobs with the same epochs and batch take, and for how many jobs it
counts."""


class Length(NamedTuple):
    """How long an ended job was."""

    steps: int
    log: float
    """Of the steps."""


def lengths_of(job: Job) -> tuple[Length, ...]:
    """Of ended jobs with the rule and batch of a job that has a limit of epochs, but those that something else ended.
    Its progress changes none of them."""
    if job.spec.convergence.max_epochs is None:
        return ()
    at_limit = [ended for ended in precedents(job) if ended.ended_by in (None, "max_epochs")]
    alike = [ended for ended in at_limit if ended.global_batch_size == job.spec.counted_batch]
    return tuple([Length(ended.total_steps, math.log(ended.total_steps)) for ended in alike if ended.total_steps > 0])


def with_uneven_epochs(job: Job, own: Prediction | None, lengths: Sequence[Length]) -> Prediction | None:
    """The prediction from the job's limit of epochs, corrected where its epochs may differ in length.

    By what ended jobs with the same rule and batch took, `lengths`; without any, by a power law through the epochs that
    are done.
    """
    limit, done = job.spec.convergence.max_epochs, job.epochs
    if own is None or own.rule != "max_epochs" or limit is None or done is None or not job.steps_per_epoch:
        return own
    has_trained = done > 0 and job.step > 0
    took = [log for steps, log in lengths if steps > job.step]
    if not took and (not has_trained or done >= limit):
        return own
    mean, spread = _by_precedents(took) if took else _by_power_law(job, done, job.steps_per_epoch, limit)
    total, least = max(math.exp(mean), job.step + 1.0), float(job.step)
    low, high = (max(total * math.exp(sign * REACH * spread), least) for sign in (-1.0, 1.0))
    return own._replace(mean=total, low=low, high=high)


def _by_precedents(logs: Sequence[float]) -> tuple[float, float]:
    """Mean and spread of the logarithm of the total steps."""
    mean = sum(logs) / len(logs)
    squares = sum((each - mean) ** 2 for each in logs) + _SPREAD_COUNT * _PRECEDENTS_SPREAD**2
    return mean, math.sqrt(squares / (len(logs) + _SPREAD_COUNT))


def _by_power_law(job: Job, done: float, present: float, limit: float) -> tuple[float, float]:
    """`present`: steps of all epochs by their number, were the rest as efficient as the job is now."""
    further = math.log(limit / done)
    left = max(present * limit - job.step, 1.0)
    slope = left / (limit - done) * done / job.step
    exponent = min(max(slope, 0.0), _EXPONENT)
    return math.log(job.step) + exponent * further, _EXPONENT_SPREAD * further
