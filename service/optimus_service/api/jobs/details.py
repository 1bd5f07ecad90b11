"""What is known of one job beyond its present state: events, decisions, predictions, memberships, tasks, logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query

from optimus_contract import answers
from optimus_contract.limits import MAX_LOGS, MAX_TASKS
from optimus_scheduler.allocate.allocate_with_quotas import guarantees, may_not_borrow
from optimus_scheduler.model import Node, Resources, Role
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import documented, invalid_field
from optimus_service.api.jobs import seen
from optimus_service.api.jobs.jobs import CursorQuery, LimitQuery, newest_of
from optimus_service.api.services import CallerDep, HistoriesDep, Services, ServicesDep
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.insight.jobs.bodies import allocation_point_bodies, decision_body, event_body, task_body
from optimus_service.insight.jobs.speeds_here import speeds_here
from optimus_service.insight.jobs.usage import reported_by_tasks, reported_by_workers
from optimus_service.insight.predictions.predictions import MAX_DECISIONS, MAX_SIZES, Question, predictions_body
from optimus_service.insight.predictions.sizes import PAST_SECONDS, Limits, checkpoint_advice
from optimus_service.observe.spec import begins_anew
from optimus_service.observe.standstills import standstills
from optimus_service.store.records import JobRecord, TaskRecord
from optimus_service.store.repository import Repository

MAX_TAIL_BYTES = 262_144
_TASKS = "0*(?:[1-9][0-9]{0,2}|10[01][0-9]|102[0-4])"
"""A number from 1 to `MAX_TASKS`, as a regular expression, so that the OpenAPI document can say it."""
_RANGE = re.compile(f"^({_TASKS})(?:-({_TASKS}))?$")

DeadlineQuery = Query(
    gt=0, le=1e9, allow_inf_nan=False, description="seconds from now; asks for the cheapest size that ends before it"
)
BudgetQuery = Query(gt=0, le=1e12, allow_inf_nan=False, description="money; asks for the fastest size that costs less")
SizesQuery = Query(
    max_length=9,
    description=f"a number or a range like 1-8, of 1 to {MAX_TASKS}",
    examples=["1-8"],
    json_schema_extra={"pattern": _RANGE.pattern},
)

_T = TypeVar("_T")

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.get("/v1/jobs/{job_id}/events", responses=documented(404))
def list_events(
    job_id: str, services: ServicesDep, cursor: CursorQuery = None, limit: LimitQuery = 50
) -> answers.EventList:
    """What happened to the job, newest first."""
    services.repository.jobs.get(job_id)
    page = services.repository.events.page(job_id, cursor, limit)
    return answers.EventList(events=[event_body(event) for event in page.items], next_cursor=page.next_cursor)


@router.get("/v1/jobs/{job_id}/decisions", responses=documented(404))
def list_decisions(
    job_id: str, services: ServicesDep, caller: CallerDep, cursor: CursorQuery = None, limit: LimitQuery = 50
) -> answers.DecisionList:
    """What each round decided for the job and why, newest first."""
    services.repository.jobs.get(job_id)
    page = services.repository.rounds.decisions(job_id, cursor, limit)
    decisions = [seen.decision(decision_body(each), caller) for each in page.items]
    return answers.DecisionList(decisions=decisions, next_cursor=page.next_cursor)


@router.get("/v1/jobs/{job_id}/predictions", responses=documented(404))
def predict_job(
    job_id: str,
    services: ServicesDep,
    histories: HistoriesDep,
    caller: CallerDep,
    workers: Annotated[str, SizesQuery] = "1-8",
    servers: Annotated[str, SizesQuery] = "1-8",
    deadline_seconds: Annotated[float | None, DeadlineQuery] = None,
    budget: Annotated[float | None, BudgetQuery] = None,
) -> answers.Predictions:
    """What Optimus believes of the job now: its loss curve, when it will be done, its speed at other sizes."""
    sizes = sizes_in("workers", workers), sizes_in("servers", servers)
    if len(sizes[0]) * len(sizes[1]) > MAX_SIZES:
        raise invalid_field("workers", f"workers × servers may be {MAX_SIZES} sizes at most")
    rounds = services.repository.rounds
    record, (memberships, latest, earlier) = with_the_rest(
        services.repository,
        job_id,
        lambda _: (
            services.repository.memberships.of_job(job_id),
            rounds.latest_decisions([job_id]).values(),  # with what is expected
            rounds.decisions(job_id, limit=MAX_DECISIONS).items,
        ),
    )
    now = services.clock()
    nodes = _nodes(services)
    job = histories.job(record, memberships, now, nodes)
    decisions = [*latest, *(each for each in earlier if each.id not in {one.id for one in latest})]
    known = {each.job_id: each for each in latest}
    still = standstills(services.repository, [record], known, now, services.listens_since)
    limits = Limits(deadline_seconds, budget)
    speed = speeds_here(services.repository, [record], known, now).get(job_id)
    question = Question(*sizes, now, limits, *_capacities(services, nodes, job.spec.project), still, speed)
    checkpoints = _checkpoints(record, services)
    predictions = services.repository.shown_predictions.of_job(job_id) if record.state.is_final else ()
    body = predictions_body(record, job, decisions, question, services.settings.scheduling, checkpoints, predictions)
    return seen.predictions(body, caller)


def with_the_rest(repository: Repository, job_id: str, read: Callable[[JobRecord], _T]) -> tuple[JobRecord, _T]:
    """The job and what `read` reads beside it, as of one round and one membership: both are read again as long as the
    job has changed in between."""
    job = repository.jobs.get(job_id)
    while True:
        rest = read(job)
        before, job = job, repository.jobs.get(job_id)
        if stands(job) == stands(before):
            return job, rest


def stands(job: JobRecord) -> tuple[object, ...]:
    """What of it changes with rounds and memberships, and not with its steps."""
    return job.wanted_at, job.state, job.directive, job.membership_epoch, job.attempt


def _nodes(services: Services) -> Sequence[Node]:
    """Of the cluster; none while it does not answer."""
    try:
        return services.cluster.nodes()
    except ClusterUnavailable:
        return ()


def _capacities(services: Services, nodes: Sequence[Node], project: str) -> tuple[Resources | None, Resources | None]:
    """What the cluster has, and what of it the project may have at most; None where there is no such limit."""
    if not nodes:
        return None, None
    capacity = sum((node.capacity for node in nodes), Resources())
    quotas = [each.quota for each in services.repository.projects.all()]
    confined = project in may_not_borrow(quotas)
    return capacity, guarantees(quotas, capacity)[project] if confined else None


def _checkpoints(record: JobRecord, services: Services) -> answers.CheckpointAdvice | None:
    if (record.profile or {}).get("checkpoint_every_seconds") is None:
        return None
    now = services.clock()
    past = services.repository.memberships.interruptions(now - PAST_SECONDS, now)
    return checkpoint_advice(record, past, now)


@router.get("/v1/jobs/{job_id}/evaluations", responses=documented(404))
def list_evaluations(job_id: str, services: ServicesDep, histories: HistoriesDep) -> answers.EvaluationList:
    """What the job's evaluations gave, figure by figure: 20 figures at most, each of at most 128 points."""
    record = services.repository.jobs.get(job_id)
    return histories.evaluations(record, services.repository.memberships.of_job(job_id))


@router.get("/v1/jobs/{job_id}/curves", responses=documented(404))
def list_curves(job_id: str, services: ServicesDep, histories: HistoriesDep) -> answers.Curves:
    """What the job measured, by step, epoch and time, to be drawn over the curves of other jobs.

    Its loss and at most 20 figures of its evaluations, each of at most 128 points.
    """
    record = services.repository.jobs.get(job_id)
    return histories.curves(record, services.repository.memberships.of_job(job_id))


@router.get("/v1/jobs/{job_id}/allocations", responses=documented(404))
def list_allocations(job_id: str, services: ServicesDep, histories: HistoriesDep) -> answers.AllocationList:
    """The job's memberships, oldest first: how many workers and servers it had from when on."""
    job = services.repository.jobs.get(job_id)
    memberships, began = services.repository.memberships.of_job(job_id), worker_starts(services.repository, job)
    last_steps = histories.last_steps(job, memberships) if begins_anew(job) else {}
    return answers.AllocationList(allocations=allocation_point_bodies(job, memberships, began, last_steps))


def worker_starts(repository: Repository, job: JobRecord) -> dict[str, float]:
    """When workers were started, by name, of a script whose stops lose work; empty for all other jobs."""
    if not begins_anew(job):
        return {}
    found = repository.tasks.select(active_only=False, job_id=job.id)
    return {each.key.name: each.created_at for each in found if each.key.role is Role.WORKER}


@router.get("/v1/jobs/{job_id}/tasks", responses=documented(404))
def list_tasks(job_id: str, services: ServicesDep) -> answers.TaskList:
    """The job's tasks that have not ended, and what each takes of its machine."""
    job = services.repository.jobs.get(job_id)
    found = services.repository.tasks.select(job_id=job_id)
    usages = reported_by_workers(newest_of(services, job), services.repository.memberships.of_job(job_id))
    usages |= reported_by_tasks(found, services.clock())
    return answers.TaskList(tasks=[task_body(task, usages.get(task.key.name)) for task in found])


@router.get("/v1/jobs/{job_id}/logs", responses=documented(404))
def read_logs(
    job_id: str,
    services: ServicesDep,
    task: Annotated[
        str | None, Query(max_length=253, description="name of one task; default: all, the newest 50")
    ] = None,
    tail_bytes: Annotated[int, Query(ge=1, le=MAX_TAIL_BYTES, description="from the end of each log")] = 65_536,
) -> answers.LogList:
    """The end of what the job's tasks printed, newest task first."""
    services.repository.jobs.get(job_id)
    found = services.repository.tasks.select(active_only=False, job_id=job_id)
    if task is not None:
        found = [each for each in found if each.key.name == task]
        if not found:
            raise invalid_field("task", "the job has no task of this name")
    newest = sorted(found, key=_age, reverse=True)[:MAX_LOGS]
    logs = [answers.Log(task=each.key.name, text=services.cluster.log_tail(each.key, tail_bytes)) for each in newest]
    return answers.LogList(logs=logs)


def sizes_in(field: str, text: str) -> range:
    """The numbers of tasks that `4` or `1-8` stands for.

    Raises:
        Problem: it is no such text, or out of bounds (422).
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise invalid_field(field, f"must be a number or a range like 1-8, of 1 to {MAX_TASKS}")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise invalid_field(field, "must have the smaller number first")
    return range(first, last + 1)


def _age(task: TaskRecord) -> tuple[float, str]:
    return task.created_at, task.key.name
