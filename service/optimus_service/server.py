"""Puts the service together and runs it: `optimus serve`.

::

    settings ─▶ data directory, database ─▶ repository ─┬─▶ API (uvicorn, the main thread)
                                                        ├─▶ scheduling loop (a thread) ─▶ cluster ─▶ tasks
                                                        │        └─▶ queue ahead (a thread) ─▶ expected times
                                                        └─▶ long polls ◀── both
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from optimus_scheduler import round as cycle
from optimus_scheduler.ahead.queue import Hindrances, Stalled
from optimus_scheduler.allocate.policies import Policy, UnknownPolicy, policy_named
from optimus_scheduler.forecast.end import Ends
from optimus_scheduler.forecast.fits import Fits
from optimus_scheduler.forecast.forecast import Forecaster, Overheard, RememberingForecaster
from optimus_scheduler.granted_places import Timer
from optimus_scheduler.model import Plan, Snapshot
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_service.clusters.closing import with_closed_nodes
from optimus_service.clusters.local import LocalCluster, LocalClusterOptions
from optimus_service.clusters.local.task_users import TaskUsers
from optimus_service.clusters.stop_all import stop_all_tasks
from optimus_service.insight.predictions.dry_run import Foresight, Preview
from optimus_service.loop.apply import Applier
from optimus_service.loop.exits import ExitNotices
from optimus_service.loop.launch import LaunchContext
from optimus_service.loop.leader import Holder, Leadership
from optimus_service.loop.loop import Condition, LoopTimes, SchedulingLoop
from optimus_service.loop.queue_ahead import QueueAhead
from optimus_service.loop.retention import Retention
from optimus_service.loop.round import Planner, Round, RoundListener, nobody
from optimus_service.loop.told_predictions import Told, told_predictions
from optimus_service.loop.unknown_tasks import UnknownTasks
from optimus_service.metrics.registry import Metrics
from optimus_service.observe.finished_runs import FinishedRunHistory
from optimus_service.observe.histories import Histories
from optimus_service.observe.past_jobs import PastJobs
from optimus_service.observe.snapshot import Observer
from optimus_service.observe.standstills import NewestStandstills, silent_jobs, without_end
from optimus_service.process.connections import (
    ACCEPTED_AT_ONCE,
    bounded_protocol,
    most_connections,
    raise_descriptor_limit,
)
from optimus_service.process.data_directory import CannotStart, DataDirectory, refusing
from optimus_service.process.gc_pause import LongLived, collector_paused
from optimus_service.process.job_tokens import job_tokens_of
from optimus_service.process.logs import logging_to_stderr
from optimus_service.process.steady_clock import SteadyClock
from optimus_service.push.long_poll import LongPolls, ReadGenerations
from optimus_service.settings import Settings
from optimus_service.store.database.engine import (
    check_revision,
    create_engine_from_url,
    current_revision,
    head_revision,
    parse_url,
    upgrade,
)
from optimus_service.store.database.sealing import Keys
from optimus_service.store.errors import DatabaseNotAvailable, StoreError
from optimus_service.store.records import PredictionRecord
from optimus_service.store.repository import LeaderRepository, ObserveTransaction, Repository

if TYPE_CHECKING:
    from optimus_service.crd.controller import TrainingJobController

_BACKLOG = 2048
"""Connections that may wait to be accepted: all workers of a large cluster may come back at once."""
_GRACE_SECONDS = 5
"""Time that open requests have to end when the service is stopped."""
_ROUND_GRACE_SECONDS = 30.0
"""Time that a round in progress has to end when the service is stopped."""
_BACKUP = "bring it back from a backup (docs/data-directory.md)"
_CURES = {
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_IOERR: "its disk is full or fails: see `df` and the system's log",
    sqlite3.SQLITE_BUSY: "another process has it open and writes: end that one",
    sqlite3.SQLITE_READONLY: "its file and the directory around it must be writable for this user",
    sqlite3.SQLITE_CANTOPEN: "it must be a file, and the directory around it writable for this user",
    sqlite3.SQLITE_CORRUPT: _BACKUP,
    sqlite3.SQLITE_NOTADB: _BACKUP,
}
"""What to do, by SQLite's result code."""
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to

_log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Run the service until SIGTERM or SIGINT. Tasks are left running unless `settings.stop_tasks`.

    Raises:
        SystemExit: it cannot start; the message says why.
    """
    # The database may hold secrets of users (`environment`), and its directory may have been made by somebody else.
    os.umask(0o077)
    descriptors = raise_descriptor_limit()
    try:
        with (
            logging_to_stderr(settings),
            DataDirectory.locked(settings.data_directory) as directory,
            _listening(settings) as listener,
        ):
            _log.debug("descriptors", limit=descriptors, connections=most_connections(descriptors))
            _serve(settings, directory, listener)
    except (CannotStart, ClusterUnavailable, StoreError, UnknownPolicy) as error:
        raise SystemExit(f"The service cannot start: {error}") from error


def _serve(settings: Settings, directory: DataDirectory, listener: socket.socket) -> None:
    prepare_database(settings.url)
    check_certificate(settings)
    url = _url(settings.host, listener.getsockname()[1])
    if settings.tls_cert is not None and settings.service_url is not None:
        url = settings.service_url  # the certificate is for a name, by which this machine asks as well
    with refusing("a file or directory cannot be used"):
        parts = assemble(settings, settings.service_url or url, SteadyClock(directory.clock_file))
    warn_of_shared_user(settings)
    seal_variables(settings, parts.services.repository)

    training_jobs = make_training_jobs(settings, parts.services)

    def started() -> None:
        directory.write_address(url, parts.services.version)
        parts.loop.start()
        parts.ahead.start()
        parts.retention.start()
        if training_jobs is not None:
            training_jobs.start()
        LongLived().settle()  # a replica that follows runs no rounds, and serves all the same
        _log.info("listening", url=url, docs=f"{url}/docs", data_directory=str(settings.data_directory))

    # uvicorn raises the signals that stopped it again when it is done; by then there is nothing left to do.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server = _Server(parts.services, started)
        server.run(sockets=[listener])
    finally:
        if training_jobs is not None:
            training_jobs.close()
        parts.loop.stop(_ROUND_GRACE_SECONDS)
        parts.ahead.stop(_GRACE_SECONDS)
        parts.retention.stop(_GRACE_SECONDS)
        if settings.stop_tasks:
            stop_all_tasks(parts.services.cluster)
        parts.services.cluster.close()
        parts.services.repository.close()
        directory.remove_address()
    if server.refusal is not None:
        raise server.refusal
    _log.info("stopped", tasks="stopped" if settings.stop_tasks else "left running")


def warn_of_shared_user(settings: Settings) -> None:
    """Say in the log, once at the start, that nothing separates tasks from the service."""
    if settings.cluster == "local" and settings.task_user is None:
        _log.warning(
            "tasks run as the service's own user: they can read secret.key, the database and other jobs' environment",
            instead="run the service as root with OPTIMUS_TASK_USER, see docs/data-directory.md",
        )


def keys_from(settings: Settings) -> Keys | None:
    """What the settings want variables of jobs to be sealed with."""
    return Keys(settings.keys) if settings.keys else None


def seal_variables(settings: Settings, repository: Repository) -> None:
    """Seal variables of jobs that are in clear, and say in the log what is not sealed or cannot be opened.

    Raises:
        CannotStart: there are sealed ones and no key at all.
    """
    if settings.keys:
        sealed = repository.variables.rewrite()
        if sealed:
            _log.info("variables of jobs are encrypted with the first key", jobs=sealed)
    found = repository.variables.stored()
    if found.unreadable and not settings.keys:
        raise CannotStart(
            f"{found.unreadable} jobs have encrypted variables and OPTIMUS_ENCRYPTION_KEYS is not set: set it to the "
            "keys that they were encrypted with (docs/secrets.md)"
        )
    if found.unreadable:
        _log.error(
            "variables of jobs cannot be opened: their key is not in OPTIMUS_ENCRYPTION_KEYS, so these jobs wait",
            jobs=found.unreadable,
        )
    if not settings.keys:
        _log.warning(
            "variables of jobs (environment) are stored in clear: OPTIMUS_ENCRYPTION_KEYS is not set",
            jobs=found.clear,
            instead="set it to a key that `optimus secrets key` makes, see docs/secrets.md",
        )


# --- what it is made of ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """A service that is put together and not started."""

    services: Services
    loop: SchedulingLoop
    ahead: QueueAhead
    retention: Retention


def _open_repository(settings: Settings, observe: ObserveTransaction) -> Repository:
    engine = create_engine_from_url(settings.url, keys=keys_from(settings))
    return Repository(engine, observe, settings.scheduling.retry_backoff)


def _settling() -> Callable[[Snapshot, Plan], None]:
    """For the memory of the process."""
    long_lived = LongLived()
    return lambda _snapshot, _plan: long_lived.settle()


@dataclass(frozen=True, slots=True)
class Machine:
    """What a service uses of the machine, beside the clock: time that only grows, threads, and who it is.

    The default is the real one. The simulation of faults (docs/faults.md) gives its own.
    """

    monotonic: Callable[[], float] = time.monotonic
    open_repository: Callable[[Settings, ObserveTransaction], Repository] = _open_repository
    make_cluster: Callable[[Settings, Callable[[], float]], Cluster] | None = None
    """None: the cluster that the settings name, whose nodes operators can close."""
    make_long_polls: Callable[[ReadGenerations], LongPolls] = LongPolls
    leadership: type[Leadership] = Leadership
    holder: Holder | None = None
    """Who claims the lease; None: this process."""
    make_wake_up: Callable[[], Condition] = threading.Condition
    """Makes what the loop, and retention, wait at."""
    after_round: Callable[[Snapshot, Plan], None] = field(default_factory=_settling)
    """Is called at the end of each round, with what it saw and decided."""


def assemble(settings: Settings, service_url: str, clock: Callable[[], float], machine: Machine | None = None) -> Parts:
    """Everything but the web server. The database has the newest revision; tasks reach the service at `service_url`.

    Raises:
        UnknownPolicy: of that name.
    """
    machine = machine or Machine()
    metrics = Metrics()
    repository = machine.open_repository(settings, metrics.observe_transaction)
    known = Known.of(settings, repository)
    forecaster = Overheard(RememberingForecaster(known.fits, known.ends))
    planner = make_planner(policy_named(settings.policy), settings, forecaster)
    still, listens_since = NewestStandstills(), clock()

    def stalled(*, with_unheard: bool = False) -> Stalled:
        return without_end(still.at(repository, clock(), listens_since), with_unheard=with_unheard)

    def hindrances(*, with_unheard: bool = False) -> Hindrances:
        now = clock()
        return Hindrances(stalled(with_unheard=with_unheard), now, silent_jobs(repository, now, listens_since))

    def told(made: Sequence[PredictionRecord]) -> list[PredictionRecord]:
        return told_predictions(repository, made, clock(), listens_since)

    ahead = make_queue_ahead(settings, forecaster, metrics, known.past, hindrances, told)
    if machine.make_cluster is not None:
        cluster = machine.make_cluster(settings, clock)
    else:
        cluster = with_closed_nodes(make_cluster(settings, clock), repository.nodes.closed)
    long_polls = machine.make_long_polls(repository.wanted.generations)
    tokens = job_tokens_of(settings)
    context = LaunchContext(service_url, _jobs_directory(settings), tokens, local=settings.cluster == "local")
    starts_at_once = settings.kubernetes.starts_at_once if settings.cluster == "kubernetes" else 1
    applier = Applier(cluster, long_polls, context, clock, starts_at_once, machine.monotonic)
    retention = Retention(
        clock, settings.keep_seconds, metrics.count_unexpected_error, machine.monotonic, machine.make_wake_up()
    )

    def on_planned(snapshot: Snapshot, plan: Plan, leader: LeaderRepository) -> None:
        ahead.note(snapshot, plan, leader)
        retention.note(leader)
        machine.after_round(snapshot, plan)

    unsaid = partial(stalled, with_unheard=True)
    rounds = make_rounds(settings, repository, known, cluster, planner, applier, clock, on_planned, unsaid, told)
    times = LoopTimes(
        settings.round_seconds, settings.learning_round_seconds, settings.debounce_seconds, settings.lease_seconds
    )
    count_error = metrics.count_unexpected_error
    leadership = machine.leadership(repository, settings.lease_seconds, machine.monotonic, machine.holder, count_error)
    loop = SchedulingLoop(rounds, leadership, cluster, metrics, times, clock, machine.monotonic, machine.make_wake_up())
    services = Services(
        settings=settings,
        repository=repository,
        cluster=cluster,
        long_polls=long_polls,
        job_tokens=tokens,
        metrics=metrics,
        version=version("optimus-scheduler"),
        trigger_round=loop.trigger,
        trigger_round_for=loop.told,
        note_step=loop.trained,
        loop_health=loop.health,
        leads=lambda: loop.leads,
        preview=make_preview(settings, repository, known, cluster, clock, partial(hindrances, with_unheard=True)),
        finished_runs=known.finished_runs,
        clock=clock,
        still=still,
        listens_since=listens_since,
    )
    return Parts(services, loop, ahead, retention)


@dataclass(frozen=True, slots=True)
class Known:
    """What a process has learned of jobs: rounds and requests share it, as of many jobs it takes most of the memory."""

    histories: Histories
    finished_runs: FinishedRunHistory | None
    """None: nothing is learned from ended jobs."""
    past: PastJobs
    fits: Fits
    ends: Ends

    @classmethod
    def of(cls, settings: Settings, repository: Repository) -> Known:
        """Nothing yet: it is read from this database."""
        learns = settings.learn_from_finished_jobs
        finished_runs = (
            FinishedRunHistory(repository, settings.keep_seconds, settings.scheduling.convergence_points)
            if learns
            else None
        )
        past = PastJobs(repository, settings.scheduling)
        return cls(Histories(repository, settings.samples_per_round), finished_runs, past, Fits(), Ends())


def make_observer(settings: Settings, repository: Repository, known: Known) -> Observer:
    """What sees the world, for one thread."""
    members = settings.member_workers_together
    return Observer(repository, known.histories, settings.scheduling, known.finished_runs, members)


def make_rounds(
    settings: Settings,
    repository: Repository,
    known: Known,
    cluster: Cluster,
    planner: Planner,
    applier: Applier,
    clock: Callable[[], float],
    on_planned: RoundListener = nobody,
    without_end: Callable[[], Container[str]] = tuple,
    told: Told = list,
) -> Round:
    """What runs scheduling rounds. `on_planned`, `without_end`, `told`: see `Round`."""
    exits = ExitNotices(cluster, known.histories, settings.max_task_failures)
    unknown = UnknownTasks(cluster, settings.unknown_tasks, settings.drain_seconds)
    return Round(
        repository.as_leader,
        cluster,
        exits,
        make_observer(settings, repository, known),
        planner,
        applier,
        clock,
        settings.keep_seconds,
        unknown,
        on_planned,
        without_end,
        told,
    )


def make_queue_ahead(
    settings: Settings,
    forecaster: Overheard,
    metrics: Metrics,
    past: PastJobs,
    hindrances: Callable[[], Hindrances] = Hindrances,
    told: Told = list,
) -> QueueAhead:
    """What simulates the queue forward. `forecaster`: that of the rounds; all that follows: see `QueueAhead`."""
    policy, period = policy_named(settings.policy), settings.round_seconds
    return QueueAhead(lambda: forecaster.outlooks, policy, settings.scheduling, metrics, period, past, hindrances, told)


def make_preview(
    settings: Settings,
    repository: Repository,
    known: Known,
    cluster: Cluster,
    clock: Callable[[], float],
    hindrances: Callable[[], Hindrances] = Hindrances,
) -> Preview:
    """What says what a job would get. It has planners of its own: requests must not delay rounds. `hindrances`: see
    `QueueAhead`."""
    policy = policy_named(settings.policy)

    def foresee() -> Foresight:
        forecaster = Overheard(RememberingForecaster(known.fits, known.ends))
        planner = make_planner(policy, settings, forecaster)
        return Foresight(planner, forecaster, policy, settings.scheduling, known.past, hindrances)

    return Preview(cluster, make_observer(settings, repository, known), foresee, clock)


def make_planner(policy: Policy, settings: Settings, forecaster: Forecaster | None = None) -> Planner:
    """The pure middle of a round, with this policy. To be called by one thread at a time: it remembers rounds."""
    constants, memory = settings.scheduling, cycle.RoundMemory()
    forecaster = forecaster or RememberingForecaster()

    def planner(snapshot: Snapshot, timer: Timer) -> Plan:
        with collector_paused():
            return cycle.plan(snapshot, policy, constants, timer, forecaster, memory)

    return planner


def make_cluster(settings: Settings, clock: Callable[[], float]) -> Cluster:
    """The cluster that the settings name.

    Raises:
        ClusterUnavailable: there is no configuration of how to reach it.
    """
    if settings.cluster == "kubernetes":
        # Imported here: its client takes a second to import, which no other cluster needs.
        from optimus_service.clusters.kubernetes.cluster import KubernetesCluster

        return KubernetesCluster(settings.kubernetes, clock=clock)
    users = None if settings.task_user is None else TaskUsers.from_setting(settings.task_user)
    options = LocalClusterOptions.with_python(
        directory=settings.data_directory / "local",
        python=settings.local_python,
        n_slots=settings.local_slots,
        n_nodes=settings.local_nodes,
        memory_bytes=settings.local_memory_bytes,
        gpus=settings.local_gpus,
        users=users,
    )
    if users is not None:
        users.prepare(settings.data_directory, options.task_command[0])
    return LocalCluster(options)


def make_training_jobs(settings: Settings, services: Services) -> TrainingJobController | None:
    """What takes jobs from objects of the cluster, if the settings ask for that."""
    if settings.cluster != "kubernetes" or not settings.kubernetes.training_jobs:
        return None
    from optimus_service.clusters.kubernetes.gateway import Gateway
    from optimus_service.crd.controller import TrainingJobController

    return TrainingJobController(Gateway.connect(settings.kubernetes), settings.kubernetes, services)


def _jobs_directory(settings: Settings) -> Path:
    """Where tasks find the directories of jobs."""
    if settings.cluster == "kubernetes":
        return Path(settings.kubernetes.jobs_directory)
    return settings.data_directory / "jobs"


def prepare_database(url: str) -> None:
    """Bring a SQLite database up to date. A PostgreSQL database is shared, so that is its operator's to do.

    Raises:
        CannotStart: it cannot be used, or a PostgreSQL database is not at the newest revision.
        StoreError: a newer version has upgraded it, or the URL is wrong.
    """
    parsed = parse_url(url)
    try:
        _prepare(url, is_ours=parsed.get_backend_name() == "sqlite")
    except DatabaseNotAvailable as error:
        name = parsed.render_as_string(hide_password=True)
        raise CannotStart(f"the database {name} cannot be used: {error}{_cure(error)}") from error


def _cure(error: DatabaseNotAvailable) -> str:
    cure = _CURES.get(error.sqlite_code or 0)
    return "" if cure is None else f"; {cure}"


def _prepare(url: str, *, is_ours: bool) -> None:
    if is_ours:
        upgrade(url)
        return
    found, needed = current_revision(url), head_revision()
    check_revision(found)
    if found != needed:
        raise CannotStart(
            f"the database is at revision {found or '(none)'} and this version needs {needed}; "
            "stop all replicas of another version, then run `optimus db upgrade`"
        )


# --- the web server --------------------------------------------------------------------------------------------------


def check_certificate(settings: Settings) -> None:
    """Raise `CannotStart` if the service is to speak https and its certificate or key cannot be used."""
    if settings.tls_cert is None:
        return

    def no_password() -> str:
        raise CannotStart(
            f"the key {settings.tls_key} has a password: write it without (openssl pkey -in KEY -out NEW)"
        )

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, no_password)
    except OSError as error:  # also ssl.SSLError
        said = error.strerror or str(error)
        raise CannotStart(
            f"the certificate {settings.tls_cert} with the key {settings.tls_key} cannot be used: {said}"
        ) from error


class _Server(uvicorn.Server):
    """uvicorn, which tells when it has started, and lets long polls go before it waits for open requests."""

    def __init__(self, services: Services, started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                _quiet_when_cancelled(create_app(services)),
                http=bounded_protocol(),
                ws="none",
                backlog=ACCEPTED_AT_ONCE,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                timeout_graceful_shutdown=_GRACE_SECONDS,
                ssl_certfile=services.settings.tls_cert,
                ssl_keyfile=None if services.settings.tls_key is None else str(services.settings.tls_key),
            )
        )
        self._long_polls = services.long_polls
        self._tell_started = started
        self.refusal: CannotStart | None = None
        """Why it ended at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # uvicorn has one number for this and for what is accepted at once
        if self.started:
            try:
                self._tell_started()
            except CannotStart as refusal:
                self.refusal, self.should_exit = refusal, True
                await self.shutdown(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._long_polls.close()
        await super().shutdown(sockets)


def _quiet_when_cancelled(app: ASGIApp) -> ASGIApp:
    """`app`, for uvicorn: at the end of a stop that cancels what still runs, and would log a traceback of each."""

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return quiet


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket: opened before anything else, so that the port is known when tasks are started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        message = f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            message += "; choose another with --port or OPTIMUS_PORT"
        raise CannotStart(message) from error
    # Accepted connections inherit it. Without it, an answer's body waits some 40 ms for the client to confirm its head:
    # asyncio sets the option only on sockets whose protocol number is given, which those of `create_server` is not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def _url(host: str, port: int) -> str:
    """How this machine reaches the service."""
    if host in _ANY_ADDRESS:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
