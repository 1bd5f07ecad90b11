"""Workers and parameter servers as models: they speak the real messages, and train by formula.

A step is applied when all workers of its membership epoch have pushed it to every server, each its own micro-batches.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import httpx

from optimus_contract.telemetry import Sample
from optimus_workers.checkpoint.storage import LocalStorage, checkpoint_directory
from optimus_workers.coordinator.shell import LEASE_SECONDS
from optimus_workers.errors import COORDINATOR_GONE, LEAVE_SECONDS, LET_GO, TERMINATED, ServiceAway, ServiceRefused
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry.sender import Aggregator, Outbox
from optimus_workers.wire.control import SILENCE_SECONDS
from optimus_workers.wire.messages import (
    Assume,
    Assumed,
    AssumeFailed,
    DataLost,
    Done,
    Evaluate,
    Evaluated,
    Exit,
    FromTask,
    Go,
    Halt,
    Halted,
    Hello,
    Join,
    Joined,
    Leave,
    Release,
    Save,
    Saved,
    SnapshotTaken,
    ToTask,
)
from optimus_workers.wire.values import Holding, ShardFile, Source, TaskRole
from optimus_world import trained
from optimus_world.cluster import RunningTask
from optimus_world.kernel import Kernel, Process
from optimus_world.trained import PROFILE, STEPS_PER_EPOCH, Curve

if TYPE_CHECKING:
    from collections.abc import Callable

    from optimus_world.coordinator import CoordinatorAgent

LATENCY_SECONDS = 0.01
REDIAL_SECONDS = 2.0
ALONE_SECONDS = 120.0
"""Without a coordinator a task leaves after so long."""
POST_SECONDS = 60.0
"""Between two posts of a worker's telemetry: rarer than real ones, so that hours are cheap."""
FAREWELL_SECONDS = 5.0


class Surroundings(Protocol):
    """What the models use of the world."""

    kernel: Kernel
    seed: int

    def coordinator_of(self, job_id: str) -> CoordinatorAgent | None:
        """The one that listens."""

    def agent(self, task: str) -> TaskAgent | None:
        """A task that lives, by its name."""

    def leave(self, running: RunningTask, code: int) -> None:
        """The task exits."""

    def transport(self, sender: Process) -> httpx.BaseTransport:
        """How it reaches the service."""

    def broken(self, invariant: str, what: str) -> None:
        """Something happened that must not."""

    def now(self) -> float:
        """POSIX seconds, by a clock that nobody sets."""

    def is_cut(self, node: str, other: str) -> bool:
        """Whether nothing passes between these nodes now."""


@dataclass
class Link:
    """A control connection. Messages arrive in their order, and none after its end.

    What is sent while its nodes are cut off from each other waits until they are not. Either side gives up after its
    own time: until then a task may take itself for a member that its coordinator has replaced.
    """

    kernel: Kernel
    task: TaskAgent
    coordinator: CoordinatorAgent
    is_open: bool = True
    stalled: list[tuple[Process, Callable[[], None]]] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        return self.task.world.is_cut(self.task.running.launch.node, self.coordinator.running.launch.node)

    def to_task(self, message: ToTask) -> None:
        self._later(self.task.process, lambda: self.task.receive(message))

    def to_coordinator(self, message: FromTask) -> None:
        self._later(self.coordinator.process, lambda: self.coordinator.heard(self, message))

    def _later(self, process: Process, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            if self.is_open and self.is_cut:
                self.stalled.append((process, deliver))
            elif self.is_open:
                deliver()

        self.kernel.after(LATENCY_SECONDS, arrive, process)

    def cut(self) -> None:
        """Its nodes may have been cut off from each other: whoever hears nothing for long gives it up."""
        if self.is_open and self.is_cut:
            self.kernel.after(LEASE_SECONDS, self._missed, self.coordinator.process)

    def _missed(self) -> None:
        if self.is_open and self.is_cut:
            self.coordinator.silence(self.task.name)

    def heal(self) -> None:
        """Its nodes may reach each other again: what waited arrives."""
        if self.is_open and not self.is_cut:
            waiting, self.stalled = self.stalled, []
            for process, deliver in waiting:
                self.kernel.after(0.0, lambda deliver=deliver: deliver() if self.is_open else None, process)  # type: ignore[misc]

    def end(self) -> None:
        """It breaks; both sides notice, a task that is cut off later than others."""
        if not self.is_open:
            return
        self.is_open = False
        seconds = SILENCE_SECONDS - LEASE_SECONDS if self.is_cut else LATENCY_SECONDS
        self.kernel.after(LATENCY_SECONDS, lambda: self.coordinator.lost(self), self.coordinator.process)
        self.kernel.after(seconds, lambda: self.task.cut_off(self), self.task.process)


class TaskAgent(ABC):
    """What workers and servers have in common: a coordinator to find, and an end."""

    def __init__(self, world: Surroundings, running: RunningTask) -> None:
        self.world = world
        self.kernel = world.kernel
        self.running = running
        self.process = running.process
        self.name = running.launch.key.name
        self.job_id = running.launch.key.job_id
        self.rank = running.launch.key.rank
        self.link: Link | None = None
        self._alone_since = self.kernel.now
        running.terminate = self.terminate
        self.curve = Curve.of(self.job_id, world.seed)
        self.directory = Path(running.launch.environment["OPTIMUS_JOB_DIRECTORY"])
        self.kernel.after(3.0 + self.rank, self.dial, self.process)

    def dial(self) -> None:
        """Try to reach the coordinator until there is one."""
        if self.link is not None:
            return
        found = self.world.coordinator_of(self.job_id)
        if found is not None and self.world.is_cut(self.running.launch.node, found.running.launch.node):
            found = None
        if found is not None:
            self.link = Link(self.kernel, self, found)
            found.accept(self.link, self.hello())
        elif self.kernel.now - self._alone_since > ALONE_SECONDS:
            self.leave(COORDINATOR_GONE)
        else:
            self.kernel.after(REDIAL_SECONDS, self.dial, self.process)

    def cut_off(self, link: Link) -> None:
        """The connection to the coordinator is over."""
        if self.link is link:
            self.link = None
            self._alone_since = self.kernel.now
            self.kernel.after(REDIAL_SECONDS, self.dial, self.process)

    def reaches(self, other: TaskAgent) -> bool:
        """Whether data passes between the two."""
        return not self.world.is_cut(self.running.launch.node, other.running.launch.node)

    def say(self, message: FromTask) -> None:
        if self.link is not None:
            self.link.to_coordinator(message)

    def terminate(self) -> None:
        """SIGTERM: ask to be released, and go after a while whatever the answer."""
        self.say(Leave())
        self.kernel.after(LEAVE_SECONDS if self.link else 0.0, lambda: self.leave(TERMINATED), self.process)

    def leave(self, code: int) -> None:
        self.world.leave(self.running, code)

    @abstractmethod
    def hello(self) -> Hello:
        """How it introduces itself."""

    @abstractmethod
    def receive(self, message: ToTask) -> None:
        """A message of the coordinator has come."""


class ServerAgent(TaskAgent):
    """A parameter server: a range of the parameters at one version, and the version before."""

    def __init__(self, world: Surroundings, running: RunningTask) -> None:
        super().__init__(world, running)
        self.epoch = 0
        """The membership epoch that it serves."""
        self.range = 0, 0
        self.held: dict[int, int] = {}
        """Parameters by version: the newest two."""
        self._halted_for = 0
        self._candidate: tuple[Assume, int] | None = None
        self._n_workers = 0
        self._pushed: dict[int, tuple[int, int, Callable[[], None]]] = {}
        """Of the present step: slots and what to call when it is applied, by rank."""

    def hello(self) -> Hello:
        return Hello(self.name, TaskRole.SERVER, self.rank, "", "", (self.name, 1), None)

    @property
    def version(self) -> int:
        return max(self.held, default=0)

    def receive(self, message: ToTask) -> None:
        match message:
            case Halt():
                self._halted_for = message.epoch
                self._pushed.clear()
                self.say(Halted(message.epoch, self._holdings()))
            case Assume():
                self._assume(message)
            case Release():
                self._release()
            case Save():
                self._save(message)
            case Exit():
                self.leave(LET_GO)

    def _holdings(self) -> tuple[Holding, ...]:
        first, end = self.range
        if first == end:
            return ()
        return tuple(Holding(self.epoch, version, first, end) for version in sorted(self.held, reverse=True))

    def _assume(self, message: Assume) -> None:
        found: set[int] = set()
        for source in message.sources:
            parameters = self._fetched(source)
            if parameters is None:
                self.say(AssumeFailed(message.epoch, f"{source.task or source.file} does not have it"))
                return
            found.add(parameters)
        if len(found) > 1:
            self.world.broken("exactly once", f"{self.job_id}: servers hold different parameters of one version")
        parameters = found.pop() if found else trained.after(0)
        if parameters != trained.after(message.version):
            self.world.broken("exactly once", f"{self.job_id}: what is taken for version {message.version} is not")
        self._candidate = message, parameters
        self.say(Assumed(message.epoch))

    def _fetched(self, source: Source) -> int | None:
        if source.file is not None:
            try:
                return int(_storage(self.directory).read(source.file))
            except OSError:
                return None
        holder = None if source.task is None else self.world.agent(source.task)
        return holder.held.get(source.version) if isinstance(holder, ServerAgent) and self.reaches(holder) else None

    def _release(self) -> None:
        if self._candidate is None:
            return
        message, parameters = self._candidate
        self.epoch, self.range = message.epoch, (message.first, message.end)
        self.held = {message.version: parameters}
        self._n_workers = message.n_workers
        self._pushed.clear()

    def push(self, epoch: int, step: int, worker: Join, applied: Callable[[], None]) -> None:
        """A worker's share of a step has come."""
        if epoch != self.epoch or self._halted_for > epoch or step != self.version:
            return  # of a membership that is over
        self._pushed[worker.rank] = worker.first_slot, worker.end_slot, applied
        if len(self._pushed) < self._n_workers:
            return
        slots = sorted((first, end) for first, end, _ in self._pushed.values())
        if [first for first, _ in slots] != [0, *(end for _, end in slots[:-1])] or slots[-1][
            1
        ] != PROFILE.micro_batches:
            self.world.broken("exactly once", f"{self.job_id}: step {step} is of the micro-batches {slots}")
        waiting = [call for _, _, call in self._pushed.values()]
        self._pushed.clear()
        newest = trained.applied(self.held[step], step)
        self.held = {step: self.held[step], step + 1: newest}
        for call in waiting:
            call()

    def _save(self, message: Save) -> None:
        parameters = self.held.get(message.version)
        if parameters is None:
            return
        first, end = self.range
        name = f"v{message.version}-e{message.epoch}-{first}-{end}.safetensors"
        content = str(parameters).encode()
        _storage(self.directory).write(name, lambda path: _write(path, content))
        file = ShardFile(first, end, name, len(content), hashlib.sha256(content).hexdigest())
        self.say(SnapshotTaken(message.epoch, message.version))
        self.say(Saved(message.epoch, message.version, file))


class WorkerAgent(TaskAgent):
    """A worker: takes steps as it is told, and reports them by the real queue of samples."""

    def __init__(self, world: Surroundings, running: RunningTask) -> None:
        super().__init__(world, running)
        self._join: Join | None = None
        self._epoch = 0
        self._version = 0
        self._aggregator, self._outbox = Aggregator(POST_SECONDS), Outbox(post_period_seconds=POST_SECONDS)
        environment = running.launch.environment
        self._client = ServiceClient(
            environment["OPTIMUS_SERVICE_URL"],
            self.job_id,
            environment["OPTIMUS_JOB_TOKEN"],
            transport=world.transport(self.process),
        )
        self._is_leaving = False
        self.kernel.spawn(self.process, "telemetry", self._report)

    def hello(self) -> Hello:
        return Hello(self.name, TaskRole.WORKER, self.rank, "", "", None, PROFILE, self._version)

    def receive(self, message: ToTask) -> None:
        match message:
            case Halt():
                self._join, self._epoch = None, message.epoch
            case Join():
                self._join, self._epoch, self._version = message, message.epoch, message.version
                self.say(Joined(message.epoch))
            case Go():
                self._go(message)
            case Evaluate():
                self.say(Evaluated(message.epoch, {"accuracy": 0.5}))
            case Exit():
                self._is_leaving = True
                self._outbox.put(self._aggregator.take())
                self._outbox.hurry()
                self.kernel.after(FAREWELL_SECONDS, lambda: self.leave(LET_GO), self.process)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _go(self, go: Go) -> None:
        join = self._join
        if join is None or go.epoch != join.epoch:
            return
        seconds = self.curve.step_seconds(join.n_workers, len(join.servers))
        self.kernel.after(seconds, lambda: self._push(go, join, seconds), self.process)

    def _push(self, go: Go, join: Join, seconds: float) -> None:
        if self._join is not join:
            return
        waiting = {server.address for server in join.servers if server.first != server.end}

        def applied_by(address: tuple[str, int]) -> Callable[[], None]:
            def applied() -> None:
                waiting.discard(address)
                if not waiting and self._join is join:
                    self.kernel.after(LATENCY_SECONDS, lambda: self._done(go, join, seconds), self.process)

            return applied

        for address in sorted(waiting):
            server = self.world.agent(address[0])
            if not isinstance(server, ServerAgent) or not self.reaches(server):
                self.say(DataLost(join.epoch, "the connection broke", address))
                return
            push = partial(server.push, go.epoch, go.step, join, applied_by(address))
            self.kernel.after(LATENCY_SECONDS, push, server.process)

    def _done(self, go: Go, join: Join, seconds: float) -> None:
        if self._join is not join:
            return
        self._version = go.step + 1
        loss = self.curve.loss(go.step + 1)
        n_examples = PROFILE.global_batch_size * (join.end_slot - join.first_slot) // PROFILE.micro_batches
        self._outbox.put(self._aggregator.add(self._sample(go, join, seconds, loss, n_examples)))
        self.say(Done(go.epoch, go.step, loss, n_examples))

    def _sample(self, go: Go, join: Join, seconds: float, loss: float, n_examples: int) -> Sample:
        return Sample(
            membership_epoch=go.epoch,
            rank=join.rank,
            sequence=0,
            workers=join.n_workers,
            servers=len(join.servers),
            at=self.world.now(),
            step=go.step + 1,
            data_epoch=(go.step + 1) / STEPS_PER_EPOCH,
            loss=loss,
            n_examples=n_examples,
            seconds=seconds,
        )

    # --- telemetry ---------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """As the real sender's thread does, with the same queue."""
        while True:
            due = self._outbox.seconds_until_due(self.kernel.now)
            if due != 0.0:
                self.kernel.sleep(1.0 if self._is_leaving else max(due or 0.0, 5.0))
                continue
            batch = list(self._outbox.take())
            try:
                again = self._client.post_telemetry(batch)
            except ServiceAway:
                self._outbox.failed(self.kernel.now)
            except ServiceRefused:
                self._outbox.refused(self.kernel.now)
            else:
                if again:
                    self._outbox.sent_but_for(again, self.kernel.now)
                else:
                    self._outbox.sent(self.kernel.now)


def storage_of(directory: Path) -> LocalStorage:
    """The checkpoints of the job with this directory."""
    return LocalStorage(checkpoint_directory(directory))


_storage = storage_of


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
