"""What jobs that train tell of jobs of their task that wait and of which nothing else is known: how long these take.

A round learns the same from them when they have ended; the look at the queue knows that it will. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from optimus_models.arguments import named_count, naming
from optimus_scheduler.ahead.queue import Queue, Work, pace_of
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.forecast.time_left import step_seconds
from optimus_scheduler.model import Interval, Job, SpeedSource

_ALONE = 2.0
"""Steps of one run alone are halved and doubled, as those of an ended one (`alike_runs`)."""


def alike(job: Job) -> Hashable:
    """Equal for jobs of which the speeds of one are those of the other: of one task, with one batch (`speed_fits`)."""
    spec = job.spec
    return spec.family, spec.mode, spec.architecture, spec.counted_batch


def teaches(outlook: Outlook) -> bool:
    """Whether others learn its speeds when it ends."""
    return outlook.speeds.source is SpeedSource.MEASURED and bool(outlook.job.spec.family)


def is_unmeasured(outlook: Outlook) -> bool:
    """Whether nobody knows its speeds, so that it learns them from the first job of its task that ends."""
    return not outlook.speeds.is_known and not outlook.job.spec.elastic_batch


def speeds_like(training: Outlook) -> Speeds:
    """Those of a job that has learned them from this one."""
    return Speeds(training.speeds.model, SpeedSource.SIMILAR_JOBS)


def first_to_end(queue: Queue) -> dict[Hashable, Outlook]:
    """Of jobs with tasks that teach, and of which it is known when they end, the first one of each kind (`alike`)."""
    found: dict[Hashable, tuple[float, Outlook]] = {}
    for one in queue.outlooks:
        size, left = queue.sizes.get(one.id, one.present), one.forecast.remaining_steps
        if size.is_empty or left is None or one.end_is_guessed or one.id in queue.stalled or not teaches(one):
            continue
        kind, seconds = alike(one.job), left.mean / pace_of(one, size)
        if kind not in found or seconds < found[kind][0]:
            found[kind] = seconds, one
    return {kind: one for kind, (_, one) in found.items()}


def times_as_long(job: Job, training: Outlook) -> float:
    """How many times as many steps a job makes as one of its task, as their arguments say (`--steps 300`); 1: they do
    not say it."""
    total, theirs = training.forecast.total_steps, training.job
    if total is None:
        return 1.0
    epochs = [total.mean / theirs.steps_per_epoch] if theirs.steps_per_epoch else []
    for made in (*epochs, total.mean):
        count = named_count(job.spec.arguments, naming([(theirs.spec.arguments, made)]))
        if count is not None:
            return count / made
    return 1.0


def work_like_training(outlook: Outlook, first: Mapping[Hashable, Outlook]) -> Work | None:
    """Steps of a job that has not started, at the speed that is assumed of its minimum: it takes as long as with the
    speeds of the job of its kind that ends first. None: there is none, or more is known of it.

    Its own steps where its rule tells them, else as many as the other makes, by what their arguments say."""
    training = first.get(alike(outlook.job)) if outlook.job.started_at is None and is_unmeasured(outlook) else None
    if training is None or outlook.is_told:
        return None
    steps, total = outlook.forecast.remaining_steps, training.forecast.total_steps
    if steps is None or outlook.end_is_guessed:
        if total is None:
            return None
        mean = total.mean * times_as_long(outlook.job, training)
        steps = Interval(mean, mean / _ALONE, mean * _ALONE)
    least = outlook.minimum
    seconds = step_seconds(speeds_like(training).estimate(least))
    return Work.of(steps).times(seconds, pace_of(outlook, least))
