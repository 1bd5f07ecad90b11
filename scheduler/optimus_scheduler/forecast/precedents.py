"""When a job will end by what ended jobs of the same task with the same rule took: until its own losses say more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimus_models.loss.ends import Prediction
from optimus_scheduler.model import EndedJob, Job

_LIMITS = frozenset({"max_steps", "max_epochs", "max_seconds", "max_cost"})
"""Fields of a rule that have nothing to do with how training goes."""
_SPREAD, _SPREAD_COUNT = 0.5, 2.0
"""Believed spread of the logarithm of total steps among jobs of one task, and how many jobs' worth that belief is."""
_REACH = 1.2816
"""Standard deviations to the ends of an 80 % interval."""
_MOST_CONFIDENCE = 0.4
"""Confidence with many precedents: a curve of its own soon says more."""


def precedents(job: Job) -> Sequence[EndedJob]:
    """Ended jobs of the same task and project that had the same rule, and knew their epochs."""
    rule = job.spec.convergence
    return [
        ended for ended in job.similar if ended.n_epochs and ended.rule == rule and ended.project == job.spec.project
    ]


def confidence(n_precedents: int) -> float:
    """Of a prediction by so many precedents."""
    return _MOST_CONFIDENCE * n_precedents / (n_precedents + 1.0)


def with_precedents(job: Job, steps_per_epoch: float | None, own: Prediction | None) -> Prediction | None:
    """The prediction by precedents, where the job's `own` curve gives none (`own` is None, or a limit of its rule).

    The sooner of the two counts; a job that has gone on for longer than its precedents is unlike them.
    """
    if (own is not None and own.rule not in _LIMITS) or not steps_per_epoch:
        return own
    found = precedents(job)
    name = _curve_rule(job)
    if not found or name is None:
        return own
    logs = [math.log(ended.n_epochs * steps_per_epoch) for ended in found]
    mean = sum(logs) / len(logs)
    squares = sum((value - mean) ** 2 for value in logs) + _SPREAD_COUNT * _SPREAD**2
    spread = math.sqrt(squares / (len(logs) + _SPREAD_COUNT) * (1.0 + 1.0 / len(logs)))
    expected = math.exp(mean)
    if expected <= job.step:
        return own
    low, high = max(expected * math.exp(-_REACH * spread), float(job.step)), expected * math.exp(_REACH * spread)
    if own is not None and own.mean <= expected:
        return own._replace(low=min(own.low, low))
    return Prediction(expected, low, high if own is None else min(high, own.high), name)


def _curve_rule(job: Job) -> str | None:
    """The part of the rule that ended the precedents, most likely; None when only limits can end the job."""
    rule = job.spec.convergence
    names = ("target_metric", "target_loss", "loss_decrease")
    return next((name for name in names if getattr(rule, name) is not None), None)
