"""Whether the metric that a job's rule is about has reached its target."""

from __future__ import annotations

from optimus_models.loss.metric import MetricCurve
from optimus_scheduler.model import Job, MetricTarget

_METRIC_POINTS = 3
"""Evaluations needed before the fitted curve of a metric may confirm one."""


def metric_is_reached(job: Job, metric: MetricCurve | None) -> bool:
    """Whether the last evaluation reached the target, and that was no accident: the one before it did too, or the
    fitted curve does."""
    target = job.spec.convergence.target_metric
    if target is None or metric is None or not job.metric_values:
        return False
    reached = [_reaches(value, target) for value in job.metric_values[-2:]]
    if not reached[-1]:
        return False
    if len(reached) == 2 and reached[0]:
        return True
    return metric.n_points >= _METRIC_POINTS and metric.has_reached(target.value, job.metric_steps[-1])


def _reaches(value: float, target: MetricTarget) -> bool:
    return value >= target.value if target.at_least is not None else value <= target.value
