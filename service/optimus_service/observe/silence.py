"""When a tracked job that is not heard of any more is over. Pure."""

from __future__ import annotations

from optimus_scheduler.lifecycle import Event, Outcome, ResultReported, TooManyFailures
from optimus_scheduler.model.format import time_words
from optimus_service.observe.spec import RUN_LABEL
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import JobRecord

SILENT_SECONDS = 3600.0
"""A tracked job that did not report for so long is over: its machine was switched off, or its tracker was killed."""
UNHEARD_SECONDS = 6 * 3600.0
"""One of which a library posts by itself, before it has told two steps: how often it does is not known."""
LONGEST_TIMES = 3.0
"""Such a one is over when it is silent for so many times the longest that it was silent before."""
COMPLETE_SECONDS = 300.0
"""Such a one that has made all its steps has ended well when it is silent for so long."""


END_NOT_TOLD = "EndNotTold"
"""Type of the event of a run that made all its steps and was not heard of any more."""


def end_of_silent(job: JobRecord, history: JobHistory, silent_seconds: float) -> Event | None:
    """How a tracked job has ended of which nothing was heard for so long, at `last_heard`; None: it has not."""
    patience = _patience(job, history)
    if silent_seconds <= patience:
        return None
    if is_watched(job) and is_complete(job):
        return ResultReported(Outcome.SUCCEEDED, job.step)
    return TooManyFailures(
        f"nothing was heard of it for {time_words(patience)}, and its end is told as of when it last was; whether it "
        "still trains is not known"
    )


def last_heard(job: JobRecord) -> float:
    """When a tracked job told of itself last, POSIX seconds by the service's clock; up to 10 s before, where that was
    no step. What was waited for more does not belong to it."""
    known = (job.created_at, job.started_at, job.heard_at, job.step_at)
    return max(at for at in known if at is not None)


def not_told(job: JobRecord) -> str:
    """What is to be known of the end of a run that made all its steps and did not say that it ended."""
    return (
        f"It made all its {job.step:,} steps and did not say that it ended: its end is told as of when it was heard of "
        "last."
    )


def is_complete(job: JobRecord) -> bool:
    """Whether a run has made all steps that it announced: not each protocol has a word for the end."""
    total = (job.profile or {}).get("total_steps")
    return total is not None and job.step >= total


def _patience(job: JobRecord, history: JobHistory) -> float:
    """Seconds. What a library posts by itself comes as often as the training logs, which only the training knows."""
    if not is_watched(job):
        return SILENT_SECONDS  # its tracker reports every 30 s
    if is_complete(job):
        return COMPLETE_SECONDS
    if not history.longest_seconds:
        return UNHEARD_SECONDS
    return max(SILENT_SECONDS, LONGEST_TIMES * history.longest_seconds)


def is_watched(job: JobRecord) -> bool:
    """Whether it is a tracked run that a library tells of by itself."""
    return job.is_tracked and RUN_LABEL in job.asked.labels
