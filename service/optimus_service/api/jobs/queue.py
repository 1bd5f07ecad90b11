"""Who waits, in which order, and why."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from fastapi import APIRouter

from optimus_contract import answers
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.jobs.jobs import CursorQuery, LimitQuery
from optimus_service.api.services import CallerDep, ServicesDep
from optimus_service.insight.explanations.queue import Queued, in_queue, order_of_equals
from optimus_service.insight.format import moment
from optimus_service.insight.jobs.progress import times_of
from optimus_service.insight.jobs.reasons import waiting_words
from optimus_service.insight.jobs.why import is_overtaken
from optimus_service.observe.standstills import Standstills, standstills
from optimus_service.store.database.pages import decode_cursor, make_page

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.get("/v1/queue")
def list_queue(
    services: ServicesDep, caller: CallerDep, cursor: CursorQuery = None, limit: LimitQuery = 50
) -> answers.Queue:
    """The jobs that wait for tasks, the one that is expected to start first at the top.

    Positions count all jobs that wait; listed are those that the caller may read. Jobs of which no start can be
    predicted come last, by priority and then by age (by age alone, or by deadline, where the policy is so). Jobs that
    their owner paused wait for nothing. Each round decides anew who starts: a smaller, shorter or more urgent job may
    start before those above it.
    """
    after = 0 if cursor is None else decode_cursor("queue", cursor, (int,))[0]
    active = services.repository.jobs.active()
    waiting = [job for job in active if job.waits]
    decisions = services.repository.rounds.latest_decisions([job.id for job in waiting])
    now = services.clock()
    still = standstills(services.repository, waiting, decisions, now, services.listens_since)
    queue = in_queue(waiting, decisions, now, still, services.settings.policy)
    mine = [each for each in queue if each.position > int(after) and caller.reads(each.job.project)]
    body = partial(queued_body, now=now, still=still)
    page = make_page("queue", mine[: limit + 1], limit, lambda each: (each.position,), body)
    by = order_of_equals(services.settings.policy)
    return answers.Queue(waiting=len(queue), same_start_by=by, jobs=list(page.items), next_cursor=page.next_cursor)


def queued_body(queued: Queued, now: float, still: Standstills = MappingProxyType({})) -> answers.QueuedJob:
    """A job that waits, as a line of the queue. Pure."""
    job, decision = queued.job, queued.decision
    reason, why = waiting_words(None if decision is not None and is_overtaken(job, decision, now) else decision)
    return answers.QueuedJob(
        position=queued.position,
        id=job.id,
        name=job.name,
        project=job.project,
        owner=job.owner,
        priority=job.asked.priority,
        submitted_at=moment(job.created_at),
        reason=reason,
        why=why,
        expected=times_of(job, queued.decision, now, still=still),
    )
