"""What really happened, to be replayed under other policies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BeforeValidator

from optimus_contract.job import deadline_moment
from optimus_service.api.body import StrictRoute
from optimus_service.api.services import Services, ServicesDep
from optimus_service.insight.trace_export import header, job_line
from optimus_service.observe.snapshot import Histories
from optimus_service.store.records import Document, JobRecord
from optimus_service.store.repository import MAX_PAGE, Repository

router = APIRouter(route_class=StrictRoute, tags=["cluster"])

MEDIA_TYPE = "application/jsonl"
Moment = Annotated[AwareDatetime, BeforeValidator(deadline_moment)]
"""Pydantic alone would take a number for POSIX seconds."""
MomentQuery = Annotated[Moment | None, Query(examples=["2026-11-01T00:00:00Z"])]


@router.get(
    "/v1/trace",
    response_class=StreamingResponse,
    responses={200: {"description": "JSON lines", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}},
)
def export_trace(
    services: ServicesDep,
    since: MomentQuery = None,
    until: MomentQuery = None,
    project: Annotated[str | None, Query(max_length=63)] = None,
) -> StreamingResponse:
    """The jobs submitted from `since` until `until` that have ended, as a trace for `optimus simulate`.

    JSON lines: the cluster, then one job each, at last `{"end": ...}`, which says how many jobs there are and how many
    were left out because they have not ended or nothing was measured of them. Without it the answer is not complete.
    """
    begin, end = (None if moment is None else moment.timestamp() for moment in (since, until))
    jobs = _submitted(services.repository, begin or 0.0, end or float("inf"), project)
    lines = _lines(services, jobs)
    first = next(lines)  # whatever goes wrong at once is an error answer, not half a trace
    return StreamingResponse((_text(line) for line in _chain(first, lines)), media_type=MEDIA_TYPE)


def _chain(first: Document, rest: Iterator[Document]) -> Iterator[Document]:
    yield first
    yield from rest


def _text(line: Document) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def _submitted(repository: Repository, begin: float, end: float, project: str | None) -> list[JobRecord]:
    """Oldest first."""
    found: list[JobRecord] = []
    cursor: str | None = None
    while True:
        page = repository.list_jobs(project=project, cursor=cursor, limit=MAX_PAGE)
        found += [job for job in page.items if begin <= job.created_at < end]
        cursor = page.next_cursor
        if cursor is None or page.items[-1].created_at < begin:
            return found[::-1]


def _lines(services: Services, jobs: Sequence[JobRecord]) -> Iterator[Document]:
    repository = services.repository
    begins_at = jobs[0].created_at if jobs else services.clock()
    quotas = [record.quota for record in repository.projects()]
    yield header(services.cluster.nodes(), quotas, begins_at)
    counts: Counter[str] = Counter()
    for job in jobs:
        line = None
        if job.state.is_final:
            memberships = repository.memberships(job.id)
            history = Histories(repository).updated(job, memberships)  # one at a time: histories are large
            line = job_line(job, history, memberships, begins_at)
        counts["jobs" if line else "unmeasured" if job.state.is_final else "active"] += 1
        if line:
            yield line
    yield {"end": {name: counts[name] for name in ("jobs", "active", "unmeasured")}}
