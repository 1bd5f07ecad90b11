"""What really happened, to be replayed under other policies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from threading import BoundedSemaphore
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BeforeValidator

from optimus_contract.job import deadline_moment
from optimus_service.api.access.callers import Caller
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented
from optimus_service.api.services import CallerDep, Services, ServicesDep
from optimus_service.insight.cluster.trace_export import header, job_line
from optimus_service.observe.histories import Histories
from optimus_service.store.records import Document, SubmittedJob, TaskRecord
from optimus_service.store.repository import Repository

router = APIRouter(route_class=StrictRoute, tags=["cluster"])

MEDIA_TYPE = "application/jsonl"
MAX_EXPORTS = 2
"""At one time, of one replica: each takes a thread and computes all the while."""
_RETRY_AFTER_SECONDS = 10
_LISTED_AT_ONCE = 2000
_JOBS_AT_ONCE = 100
"""That are read as a whole: their specifications hold some kilobytes each, what is known of them about 20."""
_running = BoundedSemaphore(MAX_EXPORTS)
Moment = Annotated[AwareDatetime, BeforeValidator(deadline_moment)]
"""Pydantic alone would take a number for POSIX seconds."""
MomentQuery = Annotated[Moment | None, Query(examples=["2026-11-01T00:00:00Z"])]


@router.get(
    "/v1/trace",
    response_class=StreamingResponse,
    responses={
        200: {"description": "JSON lines", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
        **documented(429),
    },
)
def export_trace(
    services: ServicesDep,
    caller: CallerDep,
    since: MomentQuery = None,
    until: MomentQuery = None,
    project: Annotated[str | None, Query(max_length=63)] = None,
) -> StreamingResponse:
    """The jobs submitted from `since` until `until` that have ended, as a trace for `optimus simulate`.

    JSON lines: the cluster, then one job each, at last `{"end": ...}`, which says how many jobs there are and how many
    were left out because they have not ended or nothing was measured of them. Without it the answer is not complete.
    """
    begin, end = (None if moment is None else moment.timestamp() for moment in (since, until))
    jobs = _submitted(services.repository, begin or 0.0, end or float("inf"), project, caller)
    lines = _lines(services, jobs, caller)
    first = next(lines)  # whatever goes wrong at once is an error answer, not half a trace
    return StreamingResponse((_text(line) for line in chain([first], lines)), media_type=MEDIA_TYPE)


def _text(line: Document) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def _submitted(
    repository: Repository, begin: float, end: float, project: str | None, caller: Caller
) -> Iterator[list[SubmittedJob]]:
    """Oldest first, some at a time."""
    last: SubmittedJob | None = None
    while page := repository.jobs.submitted(begin, end, project, last, _LISTED_AT_ONCE, caller.projects):
        yield page
        last = page[-1]


def _lines(services: Services, pages: Iterator[list[SubmittedJob]], caller: Caller) -> Iterator[Document]:
    """Some jobs are in memory at a time, with their histories: both may be large."""
    if not _running.acquire(blocking=False):
        detail = f"{MAX_EXPORTS} exports of the trace run already"
        raise Problem(429, detail, headers={"Retry-After": str(_RETRY_AFTER_SECONDS)})
    try:
        yield from _documents(services, pages, caller)
    finally:
        _running.release()


def _documents(services: Services, pages: Iterator[list[SubmittedJob]], caller: Caller) -> Iterator[Document]:
    repository = services.repository
    first = next(pages, [])
    begins_at = first[0].created_at if first else services.clock()
    quotas = [record.quota for record in repository.projects.all() if caller.reads(record.quota.project)]
    rounds = {name: getattr(services.settings, name) for name in ("round_seconds", "learning_round_seconds")}
    yield header(services.cluster.nodes(), quotas, begins_at, rounds)
    n_active = n_ended = n_lines = 0
    for page in chain([first], pages):
        ended = [job for job in page if job.state.is_final]
        n_active, n_ended = n_active + len(page) - len(ended), n_ended + len(ended)
        measured = [job.id for job in ended if job.has_samples]
        for start in range(0, len(measured), _JOBS_AT_ONCE):
            for line in _job_lines(repository, measured[start : start + _JOBS_AT_ONCE], begins_at):
                n_lines += 1
                yield line
    yield {"end": {"jobs": n_lines, "active": n_active, "unmeasured": n_ended - n_lines}}


def _job_lines(repository: Repository, job_ids: Sequence[str], begins_at: float) -> Iterator[Document]:
    """In this order, without jobs of which nothing was measured; what is read is read once for all of them."""
    found = repository.jobs.by_id(job_ids)
    jobs = [found[job_id] for job_id in job_ids if job_id in found]  # one may have been deleted meanwhile
    memberships = repository.memberships.of_jobs(found)
    histories = Histories(repository).update(jobs, memberships)
    tasks: dict[str, list[TaskRecord]] = {}
    for task in repository.tasks.select(active_only=False, job_ids=list(found)) if found else ():
        tasks.setdefault(task.key.job_id, []).append(task)
    for job in jobs:
        line = job_line(job, histories[job.id], memberships.get(job.id, ()), begins_at, tasks.get(job.id, ()))
        if line is not None:
            yield line
