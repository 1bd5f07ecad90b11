"""Until when a task that does not answer, or a step that does not come, is waited for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optimus_scheduler.model import JobState
from optimus_scheduler.model.format import lasted
from optimus_service.insight.explanations.explain import if_its_code_hangs
from optimus_service.insight.jobs.reasons import WORKER_SILENT
from optimus_service.loop.exits import COORDINATOR_UNREACHABLE, WORKER_HUNG
from optimus_service.loop.silent_coordinators import COORDINATOR_SILENT
from optimus_service.loop.silent_tasks import patience_seconds, silent_since
from optimus_service.observe.divergence import LOSS_NOT_FINITE
from optimus_service.observe.standstills import Standstills
from optimus_service.store.records import EventRecord, JobRecord, MembershipRecord
from optimus_service.store.repository import Repository

RECENT_SECONDS = 900.0
"""What hinders a job is reported once; what was reported longer ago may be over."""
_SILENT = (WORKER_SILENT, COORDINATOR_SILENT, COORDINATOR_UNREACHABLE)
"""Warnings that a later membership makes out of date."""


def awaited_words(repository: Repository, jobs: Iterable[JobRecord], still: Standstills, now: float) -> dict[str, str]:
    """By job id, of those of these jobs that wait for a task or a step, in the words of their explanations; two
    statements at most."""
    waiting = {
        job.id: job
        for job in jobs
        if job.state is JobState.RUNNING and not job.is_tracked and (job.id in still or job.running != job.wanted)
    }
    if not waiting:
        return {}
    newest = {each.job_id: each for each in repository.events.of_type(WORKER_SILENT, waiting) if each.job_id}
    newest = {job_id: each for job_id, each in newest.items() if is_recent(each, waiting[job_id], now)}
    memberships = repository.memberships.of_jobs(list(newest)) if newest else {}
    found = {}
    for job_id, job in waiting.items():
        event, stands = newest.get(job_id), still.get(job_id)
        until = "" if event is None else until_replaced(event, job, now)
        if event is not None and until and not is_over(event, job, memberships.get(job_id, ())):
            found[job_id] = dated(event, now) + until
        elif stands is not None and stands.is_stalled:
            found[job_id] = if_its_code_hangs(job, stands)
    return found


def is_recent(event: EventRecord, job: JobRecord, now: float) -> bool:
    """Whether what was told may still hinder the job: a task that does not answer does as long as it is waited for."""
    seconds = max(RECENT_SECONDS, patience_seconds(job)) if event.type == WORKER_SILENT else RECENT_SECONDS
    return event.at > now - seconds


def dated(event: EventRecord, now: float) -> str:
    """What was told, and how long ago: the present may be another."""
    ago = now - event.at
    return f"{lasted(ago)} ago: {event.message}" if ago >= 1 else event.message


REPLACED = "it is ended, and another takes its place."


def until_replaced(event: EventRecord, job: JobRecord, now: float) -> str:
    """Until when a task that does not answer is waited for; nothing of what was told of anything else. An agent of a
    script that stands still is ended by itself, sooner."""
    if event.type != WORKER_SILENT or not silent_since([event]) or event.data or job.asked.command is not None:
        return ""
    left = event.at + patience_seconds(job) - now
    when = f"within {lasted(left)}" if left > 0 else "now"
    return f" If it does not answer {when}, {REPLACED}"


def is_over(event: EventRecord, job: JobRecord, memberships: Sequence[MembershipRecord]) -> bool:
    """Whether a task that did not answer, or did again, takes part by now, or another in its place, or none at all; or
    training went back to before its loss was NaN or infinite; or none trains that could hang."""
    if event.type == WORKER_HUNG:
        return job.is_without_tasks
    if event.type == LOSS_NOT_FINITE:
        steps = [job.step, *(each.step for each in memberships if each.at > event.at)]
        return min(steps) < int(event.data.get("step", 0))
    if event.type not in _SILENT or not memberships or memberships[-1].at <= event.at:
        return False
    if event.type == COORDINATOR_SILENT:
        return True  # its replacement has formed it
    members = (*memberships[-1].workers, *memberships[-1].servers)
    place = _place(event.message.partition(" ")[0])
    return not members or place in map(_place, members)


def _place(task_name: str) -> str:
    """Without the incarnation."""
    return task_name.rpartition("-")[0]
