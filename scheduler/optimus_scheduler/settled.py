"""The world as a round that is due leaves it for other jobs: whoever acts now comes after it."""

from __future__ import annotations

from dataclasses import replace

from optimus_scheduler.model import Job, JobState, Plan, SetWanted, Snapshot


def settled_for_others(snapshot: Snapshot, planned: Plan, job_id: str) -> Snapshot:
    """With what `planned`, the plan of this snapshot, gives to all jobs but `job_id` and takes from them. The very same
    snapshot where that is what they have. Their tasks are wanted, and have yet to start or to stop."""
    changed = {each.job_id: each for each in planned.actions if isinstance(each, SetWanted) and each.job_id != job_id}
    if all(changed[job.id].allocation == job.allocation for job in snapshot.jobs if job.id in changed):
        return snapshot
    jobs = (_with(job, changed[job.id], snapshot.now) if job.id in changed else job for job in snapshot.jobs)
    return replace(snapshot, jobs=tuple(jobs))


def _with(job: Job, wanted: SetWanted, now: float) -> Job:
    size, state = wanted.allocation, job.state
    if size != job.allocation:
        state = JobState.PAUSED if size.is_empty else JobState.RUNNING
    return replace(
        job,
        state=state,
        allocation=size,
        formed=job.allocation if job.formed is None else job.formed,
        allocated_at=job.allocated_at if size == job.allocation else now,
        wanted_tasks=wanted.tasks,
        directive=wanted.directive,
        batch=wanted.batch,
        paused_by=wanted.paused_by,
    )
