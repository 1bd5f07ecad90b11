"""Jobs as their owners see them: submit, list, look at, cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Response
from starlette.concurrency import run_in_threadpool

from optimus_contract import answers
from optimus_contract.fields import MAX_ASKED_LABELS, is_label
from optimus_contract.job import JobSpec
from optimus_scheduler.lifecycle import CancelRequested
from optimus_scheduler.model import JobState, Role
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented, invalid_field
from optimus_service.api.jobs import submission
from optimus_service.api.jobs.awaited import awaited_words
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep, TaskChecksDep
from optimus_service.insight.jobs.bodies import job_body
from optimus_service.insight.jobs.progress import SPEED_SAMPLES, measured_speed
from optimus_service.observe.spec import begins_anew
from optimus_service.observe.standstills import standstills
from optimus_service.store.records import JobRecord, MembershipRecord, NameMatch, SampleRecord
from optimus_service.store.repository import Repository

MAX_LIMIT = 200
"""Items of one page: an answer stays below a megabyte or so."""

CursorQuery = Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before")]
LimitQuery = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="items of one page")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="makes the request safe to repeat: the same key never makes a second job",
    ),
]
_RESERVED_PREFIX = "trainingjob:"
"""Of keys under which earlier releases stored jobs of Kubernetes objects: replicas of such a release, and a database
that is taken back to its revision, would take the job for one of these and cancel it."""
_Filter = Query(max_length=63)
MAX_PART = 200
"""Characters of what names are compared with: more than the longest label has."""
_MATCH = (
    "what `name` is. part: of the name, in any case; any: a part of the name, id, owner, project or a label "
    "(`name=value`), in any case; exact: the whole name; start: the beginning of the name or id; "
    "id: the whole id; one: an id or a name, of whose jobs only the one that is meant is listed: the newest that is "
    "active, else the newest"
)

_STATES = (
    "any of these states; may be repeated. starting: those queued or paused whose tasks are on their way, which "
    "`queued` and `paused` have as well"
)
_LABEL = "`name=value`, or `name` for any value; may be repeated: all of them"

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.post("/v1/jobs", status_code=201, responses={**examples.SUBMITTED, **documented(409)})
async def submit_job(
    spec: Annotated[JobSpec, Body(openapi_examples=examples.JOB_SPECS)],
    services: ServicesDep,
    task_checks: TaskChecksDep,
    caller: CallerDep,
    audit: AuditDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> answers.Job:
    """Submit a job. A scheduling round follows at once.

    Refused with 422 when its code cannot be loaded or the cluster could never hold its minimum. Repeated with the same
    `Idempotency-Key` and body: 200 and the job of the first time; with another body: 409.
    """
    checked_key(idempotency_key)
    job, is_new = await task_checks.in_turn(
        partial(submission.submit, caller=caller, audit=audit), services, task_checks, spec, idempotency_key
    )
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    if is_new:
        services.trigger_round("submit")
    else:
        response.status_code = 200
    return (await run_in_threadpool(shown, services, [job]))[0]


def checked_key(idempotency_key: str | None) -> str | None:
    """The key. Raises `Problem` (422) for one that could be taken for a Kubernetes object's."""
    if idempotency_key is not None and idempotency_key.startswith(_RESERVED_PREFIX):
        raise invalid_field("Idempotency-Key", f"must not begin with {_RESERVED_PREFIX!r}: give any other key")
    return idempotency_key


@router.get("/v1/jobs")
def list_jobs(
    services: ServicesDep,
    caller: CallerDep,
    state: Annotated[list[answers.ListedState] | None, Query(description=_STATES)] = None,
    project: Annotated[str | None, _Filter] = None,
    name: Annotated[str | None, Query(max_length=MAX_PART, description="of the job; see `match`")] = None,
    match: Annotated[NameMatch, Query(description=_MATCH)] = "part",
    label: Annotated[list[str] | None, Query(description=_LABEL, max_length=MAX_ASKED_LABELS)] = None,
    owner: Annotated[str | None, Query(max_length=63, description="who submitted it")] = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = 50,
) -> answers.JobList:
    """Jobs, newest first."""
    states = None if state is None else {JobState(each) for each in state if each != "starting"}
    labels = dict(_label(text) for text in label or ())
    page = services.repository.jobs.page(
        states,
        project,
        name,
        cursor,
        limit,
        match,
        labels,
        owner,
        caller.projects,
        starting="starting" in (state or ()),
    )
    return answers.JobList(jobs=shown(services, page.items), next_cursor=page.next_cursor)


def _label(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    if not is_label(name, value):
        raise invalid_field("label", f"{text[:100]!r} is no label: give NAME=VALUE or NAME")
    return name, value if given else None


@router.get("/v1/jobs/{job_id}", responses=documented(404))
def get_job(job_id: str, services: ServicesDep) -> answers.Job:
    """One job: its state, how far it is, what it has."""
    return shown(services, [services.repository.jobs.get(job_id)])[0]


@router.post("/v1/jobs/{job_id}/cancel", responses=documented(404, 409))
def cancel_job(job_id: str, services: ServicesDep) -> answers.Job:
    """Cancel a job. Its tasks are stopped; it is `cancelled` once they are gone. 409 when it has ended already."""
    has_tasks = bool(services.repository.tasks.select(job_id=job_id))
    job = services.repository.jobs.advance(job_id, CancelRequested(has_tasks=has_tasks), services.clock())
    services.long_polls.notify(job_id, job.generation)
    services.trigger_round("cancel")
    return shown(services, [job])[0]


@router.post("/v1/jobs/{job_id}/token", responses=documented(404, 409))
def issue_token(job_id: str, services: ServicesDep) -> answers.JobToken:
    """The token with which the tracker of a tracked job reports (docs/protocol.md). 409 for any other job: its own
    tasks have its token, and nobody else."""
    job = services.repository.jobs.get(job_id)
    if not job.is_tracked:
        raise Problem(409, "the job runs on the cluster: only its own tasks have its token")
    return answers.JobToken(token=services.job_tokens.issue(job.id, job.token_nonce))


def shown(services: Services, jobs: Sequence[JobRecord]) -> list[answers.Job]:
    """Bodies with the latest decisions and speeds, a few statements for all."""
    decisions = services.repository.rounds.latest_decisions([job.id for job in jobs])
    running = [job.id for job in jobs if job.state is JobState.RUNNING]
    samples = dict.fromkeys(running, ()) | services.repository.samples.newest_of_each(running, SPEED_SAMPLES)
    bodies, now = [], services.clock()
    still = standstills(services.repository, jobs, decisions, now, services.listens_since, samples)
    memberships, began = _runs(services.repository, jobs)
    awaited = awaited_words(services.repository, jobs, still, now)
    for job in jobs:
        newest, run = samples.get(job.id, []), (memberships.get(job.id, ()), began.get(job.id), awaited.get(job.id))
        bodies.append(job_body(job, decisions.get(job.id), measured_speed(newest, now), now, newest, still, *run))
    return bodies


def _runs(
    repository: Repository, jobs: Sequence[JobRecord]
) -> tuple[Mapping[str, Sequence[MembershipRecord]], Mapping[str, float]]:
    """By job id, of scripts whose stop loses work: the memberships of those that have told steps, and when the newest
    worker was started of the others that have one."""
    anew = [job for job in jobs if not job.state.is_final and not job.is_without_tasks and begins_anew(job)]
    telling, silent = ([job.id for job in anew if (job.step > 0) is told] for told in (True, False))
    memberships = repository.memberships.of_jobs(telling) if telling else {}
    began: dict[str, float] = {}
    for task in repository.tasks.select(job_ids=silent) if silent else ():
        if task.key.role is Role.WORKER:
            began[task.key.job_id] = max(task.created_at, began.get(task.key.job_id, 0.0))
    return memberships, began


def newest_of(services: Services, job: JobRecord) -> Sequence[SampleRecord]:
    """What a job reported last; nothing for one that does not run."""
    if job.state is not JobState.RUNNING:
        return ()
    return services.repository.samples.newest(job.id, SPEED_SAMPLES)
