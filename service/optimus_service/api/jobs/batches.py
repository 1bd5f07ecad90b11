"""Many jobs in one request: submit them, cancel them by their labels.

Each job is checked, limited, recorded and made safe to repeat as if it had come alone; what is the same for all of them
is looked at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from optimus_contract import answers
from optimus_contract.batch import JobBatch, JobSelection
from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_scheduler.lifecycle import CancelRequested, InvalidTransition
from optimus_scheduler.model import JobState
from optimus_service.api.access import limits
from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import Caller, Need
from optimus_service.api.http import examples
from optimus_service.api.http.body import BatchRoute
from optimus_service.api.http.problems import Problem, document_of, documented, invalid, problem_of
from optimus_service.api.http.validation import MAX_ERRORS, field_errors
from optimus_service.api.jobs import submission
from optimus_service.api.jobs.jobs import IdempotencyKey, checked_key
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep, TaskChecksDep
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters.base import TaskObjection
from optimus_service.requests import checked
from optimus_service.store.errors import IdempotencyConflict, JobIdTaken
from optimus_service.store.records import JobRecord, NewJob
from optimus_service.store.repository import MAX_PAGE, Repository

_TRIALS = 4
"""Jobs of one request whose tasks are tried; a trial may load large libraries. What is wrong with another one, its job
says itself."""
_ID_ATTEMPTS = 10
_CANCELLED_AT_ONCE = 250
"""In one transaction, which keeps others from writing."""
_KEY_SEPARATOR = "\t"
"""Between a request's key and the place of a job: no key that is sent has one."""

router = APIRouter(route_class=BatchRoute, tags=["jobs"])


@dataclass(frozen=True, slots=True)
class _Request:
    """What holds for all jobs of a submission."""

    caller: Caller
    atomic: bool
    key: str | None
    """As it is stored."""
    hash: str


@dataclass(slots=True)
class _Item:
    """One job of a request."""

    index: int
    name: str | None
    spec: JobSpec | None = None
    """None: what was sent is none; or the job is there already."""
    document: dict[str, Any] = field(default_factory=dict)
    """The specification, with all its fields."""
    profile: dict[str, Any] | None = None
    """What was found when its task was tried."""
    key: str | None = None
    job_id: str | None = None
    project: str | None = None
    is_kept: bool = False
    """An earlier request with the same key made it."""
    is_new: bool = False
    problem: Problem | None = None

    @property
    def asked(self) -> JobSpec:
        """The specification of a job that can still be made."""
        assert self.spec is not None, "one that cannot be read is a problem"
        return self.spec

    @property
    def id(self) -> str:
        """The id of a job that can be stored."""
        assert self.job_id is not None, "each that can be made is given one"
        return self.job_id

    @property
    def record(self) -> tuple[str, str | None, dict[str, Any]]:
        """What is recorded of who did what."""
        return self.id, self.project, {"new": self.is_new} if self.spec is not None else {}


@router.post("/v1/jobs:batch", status_code=201, responses={**examples.BATCH_SUBMITTED, **documented(403, 409)})
async def submit_jobs(
    batch: Annotated[JobBatch, Body(openapi_examples=examples.BATCHES)],
    services: ServicesDep,
    task_checks: TaskChecksDep,
    caller: CallerDep,
    audit: AuditDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> answers.BatchOutcome:
    """Submit up to 1,000 jobs. One scheduling round follows.

    Each is checked like a single submission. `atomic`: the first problem refuses the request, whose errors name the
    fields of all jobs (`jobs.3.workers.min`); otherwise the answer has a problem for each job that was refused.
    Repeated with the same `Idempotency-Key` and body: the same jobs; with another body: 409. 200 when no job is new.
    """
    key = checked_key(idempotency_key)
    items = await task_checks.in_turn(_submitted, services, task_checks, batch, key, caller, audit)
    if any(item.is_new for item in items):
        services.trigger_round("submit")
    else:
        response.status_code = 200
    return _outcome(items)


@router.post("/v1/jobs:cancel", responses=documented(403))
async def cancel_jobs(
    selection: Annotated[JobSelection, Body(openapi_examples=examples.SELECTIONS)],
    services: ServicesDep,
    caller: CallerDep,
    audit: AuditDep,
) -> answers.BatchOutcome:
    """Cancel all active jobs that have these labels.

    The answer names each of them, with a problem where the caller may not change the job or it is ending already.
    Repeating is harmless. No job with these labels: an empty list.
    """
    return await run_in_threadpool(_cancelled, services, selection, caller, audit)


# --- submitting ------------------------------------------------------------------------------------------------------


def _submitted(
    services: Services, task_checks: TaskChecks, batch: JobBatch, key: str | None, caller: Caller, audit: Audit
) -> list[_Item]:
    request_hash = hashlib.sha256(json.dumps(batch.jobs, sort_keys=True).encode()).hexdigest()
    own_key = None if key is None else submission.own_key(caller, key)
    request = _Request(caller, batch.atomic, own_key, request_hash)
    items = [_read(index, document, request) for index, document in enumerate(batch.jobs)]
    with submission.named_to(services, caller):
        _find_made_before(services.repository, items, request)
        looks = _BatchLooks(services, task_checks, caller)
        for item in _open(items):
            item.problem = _objection(partial(_check, looks, item.asked), item.index)
            item.profile = submission.profile_of(task_checks, item.asked)
        if batch.atomic:
            _refuse_all_for_one(items)
        _make(services, items, request, audit)
    return items


def _read(index: int, document: dict[str, Any], request: _Request) -> _Item:
    name = document.get("name")
    item = _Item(index, name if isinstance(name, str) else None)
    item.key = None if request.key is None else f"{request.key}{_KEY_SEPARATOR}{index}"
    try:
        item.spec = checked(JobSpec, document)
    except ValidationError as error:
        # As if the whole specification had been sent: the fields have the same names in it.
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        item.problem = _of_item(index, invalid(field_errors(found, JobSpec)))
    else:
        item.name, item.project, item.document = item.spec.name, item.spec.project, write(item.spec)
    return item


def _open(items: Sequence[_Item]) -> list[_Item]:
    """Those that can still be made."""
    return [item for item in items if item.problem is None and not item.is_kept]


def _find_made_before(repository: Repository, items: Sequence[_Item], request: _Request) -> None:
    """Take what an earlier request with the same key made.

    Raises:
        IdempotencyConflict: that was another request.
    """
    found = repository.jobs.find_submissions([item.key for item in items if item.key is not None])
    for item in items:
        made = found.get(item.key or "")
        if made is None:
            continue
        if made.request_hash != request.hash:
            raise IdempotencyConflict(request.key or "", made.job_id)
        item.job_id, item.name, item.problem, item.is_kept = made.job_id, made.name, None, True


def _check(looks: submission.Looks, spec: JobSpec) -> None:
    assert looks.caller is not None, "jobs of a request are somebody's"
    submission.refuse_project(looks.caller, spec.project)
    submission.check_with(looks, spec)


class _BatchLooks(submission.Looks):
    """Of tasks that differ in the values of their arguments only, one that can train tells of all. Of values with which
    it cannot, others may be right: what is wrong with two of them alike is not about the values."""

    def __init__(self, services: Services, task_checks: TaskChecks, caller: Caller) -> None:
        super().__init__(services, task_checks, caller)
        self._loaded: dict[tuple[str, str | None], str | None] = {}
        self._tried: dict[str, dict[str, TaskObjection | None]] = {}
        """By all but the values of arguments, and by these."""
        self._n_trials = 0

    def why_not_loadable(self, import_path: str, working_directory: str | None) -> str | None:
        question = import_path, working_directory
        if question not in self._loaded:
            self._loaded[question] = super().why_not_loadable(*question)
        return self._loaded[question]

    def why_not_trainable(self, spec: JobSpec) -> TaskObjection | None:
        asked = [spec.task, spec.working_directory, spec.architecture, sorted(spec.task_args), spec.global_batch_size]
        tried, values = self._tried.setdefault(json.dumps(asked), {}), json.dumps(spec.task_args, sort_keys=True)
        found = list(tried.values())
        if values in tried or (len(found) > 1 and len(set(found)) == 1):
            return tried.get(values, found[0] if found else None)
        if None in found or self._n_trials >= _TRIALS:
            return None
        self._n_trials += 1
        tried[values] = super().why_not_trainable(spec)
        return tried[values]


def _make(services: Services, items: Sequence[_Item], request: _Request, audit: Audit) -> None:
    """Store what can be stored, in one transaction with its record."""
    with ExitStack() as origins:
        keeps: dict[int, Callable[[bool], None]] = {}
        taken: set[str] = set()
        for item in _open(items):
            _give_id(item, taken)
            if item.asked.from_job is not None:
                enter = partial(_enter, origins, services, item, keeps)
                item.problem = _objection(enter, item.index)
        if request.atomic:
            _refuse_all_for_one(items)
        try:
            with services.repository.write() as tx:
                _insert(tx, services, items, request, keeps)
                if request.atomic:
                    _refuse_all_for_one(items)
                audit.data["batch"] = len(items)
                audit.each = [item.record for item in items if item.problem is None]
        except (Problem, IdempotencyConflict):
            for keep in keeps.values():
                keep(False)
            raise
        for item in items:
            if item.index in keeps:
                keeps[item.index](item.is_new)


def _give_id(item: _Item, taken: set[str]) -> None:
    """Another one than those of this request; whether somebody else has it the database says."""
    while (job_id := submission.new_job_id(item.asked.name)) in taken:
        pass
    taken.add(job_id)
    item.job_id = job_id


def _enter(origins: ExitStack, services: Services, item: _Item, keeps: dict[int, Callable[[bool], None]]) -> None:
    keeps[item.index] = origins.enter_context(submission.with_origin(services, item.asked, item.id))


def _insert(
    tx: Repository, services: Services, items: Sequence[_Item], request: _Request, keeps: Collection[int]
) -> None:
    """Give each job that is to be made a row, or a problem. Several times: an id may be taken."""
    waiting = limits.Waiting(tx, request.caller, services.settings)
    for item in _open(items):
        item.problem = _objection(partial(waiting.admit, item.asked.project), item.index)
    left, taken, now = _open(items), {item.job_id or "" for item in items}, services.clock()
    for _ in range(_ID_ATTEMPTS):
        rows = [
            NewJob(
                item.id,
                item.document,
                services.job_tokens.new_nonce(),
                item.key,
                request.hash,
                owner=request.caller.name,
                profile=item.profile,
            )
            for item in left
        ]
        made = tx.jobs.create_many(rows, now) if rows else set()
        for item in left:
            item.is_new = item.job_id in made
        left = [item for item in left if not item.is_new]
        if not left:
            return
        _find_made_before(tx, left, request)  # by a request that came between
        left = [item for item in left if not item.is_kept]
        for item in left:
            if item.index in keeps:  # its checkpoint is there under this id
                raise JobIdTaken(item.id)
            _give_id(item, taken)
    if left:
        raise JobIdTaken(left[0].asked.name)


# --- cancelling ------------------------------------------------------------------------------------------------------


def _cancelled(services: Services, selection: JobSelection, caller: Caller, audit: Audit) -> answers.BatchOutcome:
    if selection.project is not None:
        submission.refuse_project(caller, selection.project)
    jobs = list(_selected(services.repository, selection, caller))
    have_tasks = {task.key.job_id for task in services.repository.tasks.select()} if jobs else set()
    items = [_Item(index, job.name, job_id=job.id, project=job.project) for index, job in enumerate(jobs)]
    generations: dict[str, int] = {}
    for job, item in zip(jobs, items, strict=True):
        item.problem = _objection(partial(_refuse_change, job, caller), item.index)
    open_items = [item for item in items if item.problem is None]
    for first in range(0, len(open_items), _CANCELLED_AT_ONCE):
        some = {item.id: item for item in open_items[first : first + _CANCELLED_AT_ONCE]}
        with services.repository.write() as tx:
            events = {job_id: CancelRequested(has_tasks=job_id in have_tasks) for job_id in some}
            for job_id, after in tx.jobs.advance_together(events, services.clock()).items():
                if isinstance(after, InvalidTransition):
                    some[job_id].problem = _of_item(some[job_id].index, problem_of(after))
                else:
                    generations[job_id] = after.generation
            audit.each = [item.record for item in some.values() if item.problem is None]
    for job_id, generation in generations.items():
        services.long_polls.notify(job_id, generation)
    if generations:
        services.trigger_round("cancel")
    return _outcome(items)


def _selected(repository: Repository, selection: JobSelection, caller: Caller) -> Iterator[JobRecord]:
    """Active jobs that the caller may read, newest first."""
    active, cursor = {state for state in JobState if not state.is_final}, None
    while True:
        page = repository.jobs.page(
            active,
            selection.project,
            cursor=cursor,
            limit=MAX_PAGE,
            labels=selection.labels,
            projects=caller.projects,
        )
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def _refuse_change(job: JobRecord, caller: Caller) -> None:
    if not caller.changes(job):
        raise Problem(403, f"{caller.name} may not do this: {caller.whose(job)}{Need.CHANGE_JOB.words}")


# --- answers ---------------------------------------------------------------------------------------------------------


def _objection(call: Callable[[], None], index: int) -> Problem | None:
    """Why the call refuses one job of a request."""
    try:
        call()
    except Problem as problem:
        return _of_item(index, problem)
    return None


def _of_item(index: int, problem: Problem) -> Problem:
    """The problem of one job of a request: its fields are those of the request."""
    place = f"jobs.{index}"
    errors = [answers.ProblemError(field=f"{place}.{each.field}", message=each.message) for each in problem.errors]
    errors = errors or [answers.ProblemError(field=place, message=problem.detail)]
    detail = f"{place}: {problem.detail}"
    return Problem(problem.status_code, detail, kind=problem.kind, errors=errors, headers=problem.headers)


def _refuse_all_for_one(items: Sequence[_Item]) -> None:
    """Raise the first problem, with the errors of all of them."""
    problems = [item.problem for item in items if item.problem is not None]
    if not problems:
        return
    first, errors = problems[0], [error for each in problems for error in each.errors]
    more = f" (and {len(problems) - 1} other jobs)" if len(problems) > 1 else ""
    detail = f"no job was made: {first.detail}{more}"
    raise Problem(first.status_code, detail, kind=first.kind, errors=errors[:MAX_ERRORS], headers=first.headers)


def _outcome(items: Sequence[_Item]) -> answers.BatchOutcome:
    found = [
        answers.BatchItem(
            index=item.index,
            id=None if item.problem is not None and item.spec is not None else item.job_id,
            name=item.name,
            new=item.is_new,
            problem=None if item.problem is None else document_of(item.problem),
        )
        for item in items
    ]
    refused = sum(item.problem is not None for item in items)
    return answers.BatchOutcome(jobs=found, done=len(found) - refused, refused=refused)
