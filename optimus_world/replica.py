"""A replica of the service: put together as `optimus serve` does it, on a machine of the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI

from optimus_scheduler.model import Plan, Snapshot
from optimus_service import server
from optimus_service.api.app import create_app
from optimus_service.api.services import Services, Turns
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters.base import Cluster, TaskObjection
from optimus_service.loop.leader import Holder, Leadership
from optimus_service.process.identity import Process as KernelProcess
from optimus_service.process.steady_clock import ClockFile, SteadyClock
from optimus_service.push.long_poll import LongPolls, ReadGenerations
from optimus_service.settings import Settings
from optimus_service.store.samples.sample_queue import SampleQueue, Store
from optimus_world.database import Database
from optimus_world.kernel import Fiber, FiberCondition, FiberLock, Kernel, Process, Signal

URL = "http://localhost"
MakeCluster = Callable[[Process, Callable[[], float]], Cluster]
"""A replica's access to the cluster, by its process and its clock."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of a replica."""

    name: str
    number: int
    wall: Callable[[], float]
    """Its clock, POSIX seconds: somebody may set it."""


class FiberLeadership(Leadership):
    """The real one; what renews the lease beside a round is a fiber."""

    kernel: Kernel

    @contextmanager
    def kept(self) -> Iterator[None]:
        fiber, done = self.kernel.current(), Signal(self.kernel)
        assert fiber is not None
        self.kernel.spawn(fiber.process, "lease", lambda: self._keep(cast(Any, done)))
        try:
            yield
        finally:
            done.set()


class FiberLongPolls(LongPolls):
    """Long polls wait as fibers, until this replica's own round changes something, or until it sees what others did.

    The real one asks the database each second while somebody waits. This one looks `POLL_SECONDS` after a commit: it
    sees the same, for less.
    """

    kernel: Kernel

    def __init__(self, read_generations: ReadGenerations) -> None:
        super().__init__(read_generations)
        self._parked: dict[str, list[tuple[int, Fiber]]] = {}

    async def wait(self, job_id: str, after_generation: int, timeout_seconds: float) -> int:
        fiber = self.kernel.current()
        if fiber is not None and timeout_seconds > 0:
            place = after_generation, fiber
            waiting = self._parked.setdefault(job_id, [])
            waiting.append(place)
            self.kernel.park(timeout_seconds)
            waiting.remove(place)
        return after_generation

    def notify(self, job_id: str, generation: int) -> None:
        for after, fiber in self._parked.get(job_id, []):
            if after < generation:
                self.kernel.wake(fiber)

    def look(self, generations: Mapping[str, int]) -> None:
        """What the query of the real long polls would find."""
        for job_id, generation in generations.items():
            self.notify(job_id, generation)


class FiberTurns(Turns):
    """Changes of a job take turns as fibers."""

    def __init__(self, kernel: Kernel) -> None:
        self._locks = cast(Any, tuple(FiberLock(kernel) for _ in range(64)))


class FiberQueue(SampleQueue):
    """What commits posts together is a fiber."""

    def __init__(self, store: Store, kernel: Kernel, process: Process) -> None:
        super().__init__(store)
        self._thread = cast(Any, _Spawner(kernel, process))


@dataclass(frozen=True, slots=True)
class _Spawner:
    """As an executor with one thread."""

    kernel: Kernel
    process: Process

    def submit(self, call: Callable[[], None]) -> None:
        self.kernel.spawn(self.process, "samples", call)


class PlainChecks(TaskChecks):
    """The cluster's answers at once, without a thread for each."""

    def why_not_loadable(self, import_path: str, working_directory: str | None) -> str | None:
        return self._check(import_path, working_directory)

    def why_not_trainable(self, job: Mapping[str, Any]) -> TaskObjection | None:
        found = self._try(job)
        return found if isinstance(found, TaskObjection) else None


class Replica:
    """One life of the service on a host, from its start to its end."""

    def __init__(
        self,
        kernel: Kernel,
        host: Host,
        life: int,
        settings: Settings,
        database: Database,
        make_cluster: MakeCluster,
        after_round: Callable[[Snapshot, Plan], None],
    ) -> None:
        self.host = host
        self.process = Process(f"{host.name}#{life}")
        self.holder = Holder(host.name, KernelProcess(100 * host.number + life, life))
        clock = SteadyClock(_clock_file(settings, host), host.wall, lambda: kernel.now + 1000.0)
        machine = server.Machine(
            monotonic=lambda: kernel.now,
            open_repository=database.open,
            make_cluster=lambda _settings, clock: make_cluster(self.process, clock),
            make_long_polls=_bound(FiberLongPolls, kernel),
            leadership=_bound(FiberLeadership, kernel),
            holder=self.holder,
            make_wake_up=lambda: FiberCondition(kernel),
            after_round=after_round,
        )
        parts = server.assemble(settings, URL, clock, machine)
        self.loop, self.retention = parts.loop, parts.retention
        self.long_polls = cast(FiberLongPolls, parts.services.long_polls)
        self.repository = parts.services.repository
        self.app = _app(replace(parts.services, edits=FiberTurns(kernel)))
        self.app.state.sample_queue = FiberQueue(self.repository.samples.add, kernel, self.process)
        self.loop.trigger("start")
        self.fiber = kernel.spawn(self.process, "loop", self.loop.run)
        kernel.spawn(self.process, "retention", self.retention.run)


def _bound(kind: type[Any], kernel: Kernel) -> type[Any]:
    return type(kind.__name__, (kind,), {"kernel": kernel})


def _clock_file(settings: Settings, host: Host) -> ClockFile:
    return ClockFile(Path(settings.data_directory) / f"{host.name}.clock.json", "boot")


def _app(services: Services) -> FastAPI:
    """The application for this service."""
    app = create_app(services)
    app.state.task_checks = PlainChecks(services.cluster.check_task, services.cluster.try_task)
    return app


# The metrics of a service remember what shows them; each life has its own, so nothing of an earlier one is kept.
make_settings = partial(Settings, _env_file=None)
