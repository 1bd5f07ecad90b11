"""What the API is given by the process that serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

from fastapi import Depends, Request

from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import Caller
from optimus_service.api.plan_turns import PlanTurns
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters.base import Cluster
from optimus_service.insight.predictions.dry_run import Preview
from optimus_service.insight.predictions.predictions import HistoryCache
from optimus_service.metrics.registry import Metrics
from optimus_service.observe.finished_runs import FinishedRunHistory
from optimus_service.observe.standstills import NewestStandstills, Standstills
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.settings import Settings
from optimus_service.store.repository import Repository
from optimus_service.store.samples.sample_queue import SampleQueue


def _ignore_step(_job_id: str, _step: int, _at: float | None) -> None:
    """Without a scheduler nobody waits for it."""


def _ignore_news(_job_id: str, _why: str) -> None:
    """Without a scheduler there is nothing to ask for."""


def _ignore_trigger(_why: str) -> None:
    """For a replica without a scheduling loop: the leader's next round sees the change in the database."""


def _healthy() -> str | None:
    return None


def _leads() -> bool:
    return True


class Turns:
    """Calls that change the same thing take turns: what one reads no other changes before it has written."""

    def __init__(self) -> None:
        self._locks = tuple(threading.Lock() for _ in range(64))

    def of(self, name: str) -> threading.Lock:
        """The lock of that thing, which a few others may share."""
        return self._locks[hash(name) % len(self._locks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that endpoints use. Built once at start, shared by all requests."""

    settings: Settings
    repository: Repository
    cluster: Cluster
    long_polls: LongPolls
    job_tokens: JobTokens
    metrics: Metrics = field(default_factory=Metrics)
    version: str
    trigger_round: Callable[[str], None] = _ignore_trigger
    """Asks for a scheduling round soon, with the reason; returns at once, from any thread."""
    trigger_round_for: Callable[[str, str], None] = _ignore_news
    """The same for what a job has told, with its id: not for each of many such things."""
    note_step: Callable[[str, int, float | None], None] = _ignore_step
    """Told the newest step of a job whenever telemetry comes, and when worker 0 had made it, POSIX seconds by that
    worker's clock (None: it told nothing); returns at once, from any thread."""
    loop_health: Callable[[], str | None] = _healthy
    """What is wrong with the scheduling loop, None when nothing is."""
    preview: Preview | None = None
    """Says what a job would get; None on a service without a scheduler."""
    finished_runs: FinishedRunHistory | None = None
    """What ended jobs taught; None: predictions make nothing of it."""
    leads: Callable[[], bool] = _leads
    """Whether this replica runs the rounds: it is the one that shows figures of jobs and cluster."""
    plans: PlanTurns = field(default_factory=PlanTurns)
    """Questions what would happen, in turn."""
    edits: Turns = field(default_factory=Turns)
    """Changes of a job, in turn."""
    clock: Callable[[], float] = time.time
    """POSIX seconds."""
    still: NewestStandstills = field(default_factory=NewestStandstills)
    """What keeps jobs from making steps, a few seconds old."""
    listens_since: float = 0.0
    """When this process began to, POSIX seconds: of what came before it knows only what another heard."""

    def still_now(self) -> Standstills:
        """What keeps jobs from making steps, up to a few seconds old."""
        return self.still.at(self.repository, self.clock(), self.listens_since)


# Coroutines, though none waits for anything: FastAPI calls functions in threads, which costs more than they do.


async def _services_of(request: Request) -> Services:
    """With the database as this request may use it: a user's call reads only, or records what it changes."""
    services = cast(Services, request.app.state.services)
    repository: Repository | None = getattr(request.state, "repository", None)
    return services if repository is None else replace(services, repository=repository)


async def _task_checks_of(request: Request) -> TaskChecks:
    return cast(TaskChecks, request.app.state.task_checks)


async def _histories_of(request: Request) -> HistoryCache:
    return cast(HistoryCache, request.app.state.histories)


async def _caller_of(request: Request) -> Caller:
    return cast(Caller, request.state.caller)


async def _audit_of(request: Request) -> Audit:
    return cast(Audit, request.state.audit)


async def _sample_queue_of(request: Request) -> SampleQueue:
    return cast(SampleQueue, request.app.state.sample_queue)


ServicesDep = Annotated[Services, Depends(_services_of)]
TaskChecksDep = Annotated[TaskChecks, Depends(_task_checks_of)]
HistoriesDep = Annotated[HistoryCache, Depends(_histories_of)]
CallerDep = Annotated[Caller, Depends(_caller_of)]
AuditDep = Annotated[Audit, Depends(_audit_of)]
SampleQueueDep = Annotated[SampleQueue, Depends(_sample_queue_of)]
"""Parameter types that give an endpoint what it works with."""
