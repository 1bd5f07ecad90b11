"""The learning rates of a job as one schedule: those that it reported, and from there on those that are planned."""

from __future__ import annotations

import numpy as np

from optimus_models.history import FloatArray
from optimus_models.loss.rate_schedule import RateSchedule
from optimus_scheduler.model import Job


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
