"""How the pace of a job goes on from here to its end, by ended runs that did the same work."""

from __future__ import annotations

import math

import numpy as np

from optimus_models.speed.course import AS_MEASURED, CourseToCome, Measured, RunCourse, course_to_come
from optimus_models.speed.measurements import may_have_changed, present_speeds
from optimus_scheduler.forecast.speed_fits import with_counts_aside
from optimus_scheduler.forecast.time_left import Habits
from optimus_scheduler.model import EndedJob, Interval, Job, SpeedSample
from optimus_scheduler.settings import Settings


def pace_to_come(job: Job, total: Interval | None, settings: Settings) -> CourseToCome:
    """As its pace is measured where it has measured none itself, nothing says where it ends (`total` steps), or no
    ended run did the same work with one size all the time.

    The same work: that of the same task with the same arguments, but for how many steps or epochs they name. Runs are
    compared step by step, or by their epochs where their batches differ.
    """
    if total is None or not job.speed_samples or not 0 < job.step < total.mean < math.inf:
        return AS_MEASURED
    if job.spec.elastic_batch is not None or not any(each.pace_steps for each in job.similar):
        return AS_MEASURED
    found = [_course(job, each) for each in with_counts_aside(job.similar, job.spec.arguments)]
    runs = [each for each in found if each is not None]
    measured = _measured(job, settings) if runs else None
    if measured is None:
        return AS_MEASURED
    return course_to_come(runs, float(job.step), total.mean, measured, _sigma)


def _sigma(seconds: float) -> float:
    return Habits(running_seconds=seconds).drift


def _course(job: Job, ended: EndedJob) -> RunCourse | None:
    """In steps of the job; None for one that did other work, or did not tell."""
    spec = job.spec
    kind = ended.arguments, ended.mode, ended.architecture
    if not ended.pace_steps or kind != (spec.arguments, spec.mode, spec.architecture):
        return None
    course = RunCourse.of(ended.pace_steps, ended.pace_seconds)
    if course is None or not job.steps_per_epoch or not ended.steps_per_epoch:
        return course
    stretch = job.steps_per_epoch / ended.steps_per_epoch
    return course if stretch == 1.0 else course._replace(steps=course.steps * stretch)


def _measured(job: Job, settings: Settings) -> Measured | None:
    """The steps by which the job's present speed is known, and how much each part of them counts (`speed_fits`): those
    with its present size, or with its newest one, since its pace last changed. None: they are not its newest ones."""
    samples = sorted(job.speed_samples, key=lambda each: each.at)
    size = (job.allocation.workers, job.allocation.servers)
    if size not in map(_size_of, samples):
        size = _size_of(samples[-1])
    end, parts = float(job.step), list[tuple[float, float, SpeedSample]]()
    for each in reversed(samples):
        begin = max(end - each.n_steps, 0.0)
        if begin < end and _size_of(each) == size:
            parts.append((begin, end, each))
        end = begin
    if not parts:
        return None
    begins, ends, own = zip(*parts, strict=True)
    at, speeds = np.array([each.at for each in own]), np.array([each.steps_per_second for each in own])
    one = np.ones(len(own))
    trust = present_speeds(one, one, speeds, at).weights if may_have_changed(speeds) else one
    exactness = np.array([min(each.n_steps / settings.full_weight_steps, 1.0) for each in own])
    weights = exactness * np.exp2(-np.minimum((at.max() - at) / settings.sample_half_life_seconds, 50.0))
    weights = np.where(np.isfinite(weights) & (weights > 0) & (trust == trust.max()), weights, 0.0)
    kept = weights > 0
    if not kept.any():
        return None
    # Models with servers are fitted to the median of a size, others to all that was measured.
    return Measured(
        np.array(begins)[kept], np.array(ends)[kept], weights[kept], is_median=job.spec.architecture.has_servers
    )


def _size_of(sample: SpeedSample) -> tuple[int, int]:
    return sample.workers, sample.servers
