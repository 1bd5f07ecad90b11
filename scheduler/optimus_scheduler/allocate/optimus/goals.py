"""How much a share of the cluster is worth to each job, by what sizes are chosen for (`Objective`).

A round maximises Σ weight · speed, and a goal is a way to weigh jobs:

* **jct**: the shorter the remaining work, the more (`weights`).
* **makespan**: the longer, the more. Of jobs of speed k^p on k units the last one ends first when all end at once, each
  on a part of the cluster in proportion to work^(1/p); the weight work^((1 - p)/p) leads to these parts.
* **fairness**: what counts is speed by that on an equal part of the cluster, and more so the later the job is by ρ, its
  completion time by that on an equal part, as it would be if it had that part from now on. A power of ρ stands in for
  the largest one: the marginal gain of Σ ρ^k lies with the jobs of large ρ.
* **deadlines**: as `jct`, but first those whose deadlines are to come, beyond the room that they claim anyway: what
  ends sooner leaves room for later ones. Whether one can still be met does not count: predictions err, and a job that
  is given up is late for sure.

With several goals weights are multiplied, each to the power of its part: only ratios of weights count.

References: Berg, Vesilo, Harchol-Balter: "heSRPT", Performance Evaluation 144, 2020 (mean and makespan); Mahajan et
al.: "Themis", NSDI 2020 (ρ).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import FloatArray
from optimus_scheduler.allocate.optimus.frontier import Frontiers
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.allocate.optimus.weights import remaining_work, weights
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.objective import MEAN_JCT
from optimus_scheduler.settings import Settings

_LATE_POWER = 4.0
"""Of ρ: with 2 the largest one was no smaller than under `jct`."""
_IN_TIME_FIRST = 10.0
"""A job with a deadline to come outweighs one without, or of a past one, of the same work by so much."""


class Round(NamedTuple):
    """What weights are made of, beside the jobs; arrays (n,)."""

    frontiers: Frontiers
    best_speed_per_share: FloatArray
    now: float
    """POSIX seconds."""
    faster: FloatArray | float = 1.0
    """How many times as fast each job may be as its frontier says, on another GPU type."""


def goal_weights(outlooks: Sequence[Outlook], at: Round, settings: Settings) -> FloatArray:
    """(n,) weights by the goals of the settings, each times the job's priority."""
    jobs = JobColumns.of(outlooks)
    by_length = weights(jobs, at.best_speed_per_share, at.frontiers.least_shares, settings)
    if settings.objective == MEAN_JCT:
        return by_length
    priority = jobs.column("priority")
    by_length = by_length / priority
    logs = np.zeros(len(jobs))
    for goal, part in settings.objective.parts.items():
        match goal:
            case "makespan":
                found = _by_work(jobs, at, settings)
            case "fairness":
                found = _by_lateness(jobs, at)
            case "deadlines":
                found = by_length * _by_deadline(jobs, at)
            case _:
                found = by_length
        logs += part * np.log(np.maximum(found, 1e-300))
    logs -= logs.mean()
    return np.asarray(np.exp(logs) * priority)


def _by_work(jobs: JobColumns, at: Round, settings: Settings) -> FloatArray:
    p = settings.speed_exponent
    work = remaining_work(jobs, at.best_speed_per_share, at.frontiers.least_shares)
    return np.asarray(work ** ((1.0 - p) / p))


def _by_lateness(jobs: JobColumns, at: Round) -> FloatArray:
    alike = np.maximum(at.frontiers.speeds_at(1.0 / len(jobs)) * at.faster, 1e-15)
    age = np.maximum(at.now - jobs.column("submitted_at"), 0.0)
    done = np.array([one.job.step for one in jobs], dtype=np.float64) / alike
    left = np.where(jobs.is_unknown, jobs.column("typical_seconds"), jobs.remaining / alike)
    late = (age + left) / np.maximum(jobs.column("stop_seconds") + done + left, 1e-9)
    return np.asarray(at.best_speed_per_share / alike * late**_LATE_POWER)


def _by_deadline(jobs: JobColumns, at: Round) -> FloatArray:
    due = [one.job.spec.deadline_at for one in jobs]
    return np.array([_IN_TIME_FIRST if each is not None and each > at.now else 1.0 for each in due])
