"""What would happen if a job were changed now."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

from fastapi import APIRouter, Body

from optimus_contract import answers
from optimus_contract.change import JobChange
from optimus_scheduler.model import Interval, Snapshot
from optimus_service.api.access.callers import Caller
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented, unavailable
from optimus_service.api.jobs import seen
from optimus_service.api.jobs.changes import checked_edit
from optimus_service.api.jobs.editing import Edit
from optimus_service.api.jobs.plan import (
    NOTHING_SHOWN,
    Shown,
    ShownNow,
    changed_jobs,
    effect_bodies,
    on_others,
    on_waiting,
    shown_now,
    with_and_without,
)
from optimus_service.api.services import CallerDep, Services, ServicesDep
from optimus_service.insight.explanations.start_and_end import at_the_latest
from optimus_service.insight.format import by_deadline, interval_body, size, span
from optimus_service.insight.jobs.bodies import allocation_body
from optimus_service.insight.jobs.end import REACHED, reached_limit
from optimus_service.insight.jobs.needs import untold_of, untold_words
from optimus_service.insight.predictions.dry_run import Altered
from optimus_service.observe.jobs import as_edited
from optimus_service.observe.spec import deadline_of
from optimus_service.store.records import JobRecord

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.post("/v1/jobs/{job_id}/plan", responses=documented(404, 409))
async def plan_change(
    job_id: str,
    change: Annotated[JobChange, Body(openapi_examples=examples.CHANGES)],
    services: ServicesDep,
    caller: CallerDep,
) -> answers.ChangePlan:
    """What a change of a job would do if it were made now: to its size and its end, and to other jobs.

    Nothing is stored. The answer comes from the scheduler's own plan, on the present state of the cluster with the
    change and without it. Refused for the same reasons as the change itself (`PATCH /v1/jobs/{job_id}`).
    """
    return await services.plans.in_turn(_planned, services, job_id, change, caller)


def _planned(services: Services, job_id: str, change: JobChange, caller: Caller) -> answers.ChangePlan:
    job = services.repository.jobs.get(job_id)
    edit = checked_edit(services, caller, job, change)
    if not edit.changed:
        return answers.ChangePlan(sentences=["It has these values already: nothing would change."], effects=[])
    changed = replace(job, spec=edit.spec)

    def with_change(world: Snapshot) -> Snapshot:
        jobs = tuple(as_edited(each, changed) if each.id == job_id else each for each in world.jobs)
        return replace(world, jobs=jobs)

    found, active, shown = foreseen(services, caller, with_change, job_id)
    if job_id not in found.decisions:
        raise Problem(409, "the job has just ended: nothing of it can be changed any more")
    return job_body(changed, edit, found, active, services.clock(), shown, of_some=caller.projects is not None)


def foreseen(
    services: Services, caller: Caller, change: Callable[[Snapshot], Snapshot], job_id: str | None = None
) -> tuple[Altered, Mapping[str, JobRecord], ShownNow]:
    """What a change would do, the active jobs that the caller may read, and what is shown of those that it concerns,
    of `job_id` anyway. Raises `Problem` (503) where there is no scheduler."""
    if services.preview is None:
        raise unavailable("this replica has no scheduler")
    active = {job.id: job for job in services.repository.jobs.active(caller.projects)}
    found = seen.altered(services.preview.of_change(change), active, caller)
    concerned = dict.fromkeys([*([] if job_id is None else [job_id]), *changed_jobs(found.effects, found.put_off)])
    return found, active, shown_now(services, concerned, active, services.clock())


def job_body(
    job: JobRecord,
    edit: Edit,
    found: Altered,
    active: Mapping[str, JobRecord],
    now: float,
    shown: ShownNow = MappingProxyType({}),
    *,
    of_some: bool = False,
) -> answers.ChangePlan:
    """What a change of `job` would do, in words and figures. Pure. `shown`: of it and of the jobs that it concerns;
    `of_some`: as of `on_others`."""
    effects = effect_bodies(found.effects, active, shown)
    own = next((each for each in effects if each.job_id == job.id), None)
    others = [each for each in effects if each.job_id != job.id]
    put_off = [each for each in found.put_off if each.job_id != job.id]  # its own start is told
    told = shown.get(job.id, NOTHING_SHOWN)
    left = None if told.is_without_end else interval_body(_left(found, job))
    sentences = [
        _on_its_size(found, job, own),
        found.decisions[job.id].message,
        *_on_its_start(found, job, told),
        *_on_its_end(found, job, edit, own, told, left, now),
        *_on_what_its_rule_needs(job, edit),
    ]
    if {"deadline", "deadline_seconds"} & edit.changes.keys():
        due = deadline_of(job.asked, job.created_at)
        sentences += [] if due is None else by_deadline(left, due - now, has_begun=job.first_step is not None)
    return answers.ChangePlan(
        sentences=[
            *sentences,
            *on_others(others, of_some=of_some, beside_one=True),
            *on_waiting(put_off, active, shown),
        ],
        effects=effects,
    )


def _left(found: Altered, job: JobRecord) -> Interval | None:
    """Seconds to its end with the change: by the look ahead, or of a job that is only watched by its forecast."""
    if not job.is_tracked:
        return found.left.get(job.id)
    ahead = found.decisions[job.id].forecast
    return None if ahead.rule is None else ahead.remaining_seconds


def _on_its_size(found: Altered, job: JobRecord, own: answers.Effect | None) -> str:
    if own is not None:
        return f"With the next round it would have {size(own.after)} instead of {size(own.before)}."
    after = found.decisions[job.id].allocation
    has = "no task" if after.is_empty else size(allocation_body(after))
    return f"It would have {has} with the next round, as without the change."


def _on_its_start(found: Altered, job: JobRecord, shown: Shown) -> list[str]:
    """Of one that would wait on."""
    starts = found.starts_before.get(job.id), found.starts.get(job.id)
    before, after = with_and_without(shown.start, *starts, interval_body)
    if not found.decisions[job.id].allocation.is_empty or job.is_being_cancelled or after is None:
        return []
    verb = "start" if job.started_at is None else "go on"
    instead = "" if shown.start is None or before is None else f"; as things are, in {span(before)}"
    return [f"It would {verb} in {span(after)}{instead}."]


def _on_what_its_rule_needs(job: JobRecord, edit: Edit) -> list[str]:
    """Where the rule is changed: that the job has told no epochs, which it counts by."""
    if not any(field.startswith("convergence") for field in edit.changes):
        return []
    watched = ["It runs outside the cluster: its rule tells when its end is expected, and nothing ends it by that."]
    return [*watched * job.is_tracked, *(untold_words(each) for each in untold_of(job, {}))]


def _on_its_end(
    found: Altered,
    job: JobRecord,
    edit: Edit,
    own: answers.Effect | None,
    shown: Shown,
    left: answers.Interval | None,
    now: float,
) -> list[str]:
    """Where the change moves it; `left`: seconds to it with the change, by the look ahead."""
    if job.is_being_cancelled or (own is None and not any(field.startswith("convergence") for field in edit.changes)):
        return []
    if (limit := _limit_without_tasks(found, job, now)) is not None:
        return [f"It would end as soon as it goes on: {REACHED[limit]}."]
    after = own.finish_seconds_after if own is not None else left
    if after is None:
        # A limit of time or money ends it also where nothing else is known of its end.
        paid = found.seconds_paid.get(job.id, math.inf)
        return [f"When it would end cannot be said.{at_the_latest(_as_given(found, job), now, paid)}"]
    before = own.finish_seconds_before if own is not None else shown.left
    instead = "" if before is None else f"; as things are, in {span(before)}"
    return [f"It would end in {span(after)}{instead}."]


def _limit_without_tasks(found: Altered, job: JobRecord, now: float) -> str | None:
    """The limit that it has reached, of one that would have no task to end by it; None: none, or it would have some."""
    if job.is_tracked or not found.decisions[job.id].allocation.is_empty:
        return None
    spent = "max_cost" if job.started_at is not None and found.seconds_paid.get(job.id) == 0.0 else None
    return reached_limit(job, None, now) or spent


def _as_given(found: Altered, job: JobRecord) -> JobRecord:
    """With the size that it would have; one that its owner paused ends no sooner than one that waits."""
    return replace(job, wanted=found.decisions[job.id].allocation, owner_paused_at=None)
