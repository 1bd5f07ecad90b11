"""Who waits, in which order, and why."""

from __future__ import annotations

from fastapi import APIRouter

from optimus_contract import answers
from optimus_service.api.body import StrictRoute
from optimus_service.api.jobs import CursorQuery, LimitQuery
from optimus_service.api.services import CallerDep, ServicesDep
from optimus_service.insight.format import moment
from optimus_service.insight.progress import progress_of
from optimus_service.insight.reasons import waiting_words
from optimus_service.store.pages import decode_cursor, make_page
from optimus_service.store.records import DecisionRecord, JobRecord

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.get("/v1/queue")
def list_queue(
    services: ServicesDep, caller: CallerDep, cursor: CursorQuery = None, limit: LimitQuery = 50
) -> answers.Queue:
    """The jobs that wait for tasks, the one that is expected to start first at the top.

    Positions count all jobs that wait; listed are those that the caller may read. Jobs of which no start can be
    predicted come last, by priority and then by age. Jobs that their owner paused wait for nothing.
    """
    repository, now = services.repository, services.clock()
    after = 0 if cursor is None else decode_cursor("queue", cursor, (int,))[0]
    waiting = repository.queue(now)
    mine = [each for each in waiting if each.position > int(after) and caller.reads(each.project)]
    page = make_page("queue", mine[: limit + 1], limit, lambda each: (each.position,), lambda each: each)
    ids = [each.job_id for each in page.items]
    jobs, decisions = repository.jobs_by_id(ids), repository.latest_decisions(ids)
    lines = [
        _line(each.position, jobs[each.job_id], decisions.get(each.job_id), now)
        for each in page.items
        if each.job_id in jobs
    ]
    return answers.Queue(waiting=len(waiting), jobs=lines, next_cursor=page.next_cursor)


def _line(position: int, job: JobRecord, decision: DecisionRecord | None, now: float) -> answers.QueuedJob:
    reason, why = waiting_words(decision)
    return answers.QueuedJob(
        position=position,
        id=job.id,
        name=job.name,
        project=job.project,
        owner=job.owner,
        priority=job.asked.priority,
        submitted_at=moment(job.created_at),
        reason=reason,
        why=why,
        expected=progress_of(job, decision, now).expected,
    )
