"""A coordinator's state machine with scripted tasks: no sockets, no clock, no files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.coordinator.events import (
    CheckpointRead,
    Directive,
    Event,
    ManifestWritten,
    MessageArrived,
    TaskArrived,
    TaskLost,
    Ticked,
    Wanted,
    WantedArrived,
)
from optimus_workers.coordinator.instructions import (
    Append,
    Instruction,
    ReadCheckpoint,
    Send,
    Stop,
    TellMembership,
    TellResult,
    WriteManifest,
)
from optimus_workers.coordinator.journal import Ended, Formed, Forming, JournalRecord, Past, replay
from optimus_workers.coordinator.machine import Coordinator
from optimus_workers.coordinator.plan import JobPlan
from optimus_workers.wire.messages import (
    Assume,
    Assumed,
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
    Release,
    Save,
    Saved,
    SnapshotTaken,
    ToTask,
)
from optimus_workers.wire.values import Holding, ShardFile, TaskProfile, TaskRole, UpdateRule

PROFILE = TaskProfile(
    n_parameters=300,
    parameter_floats=304,
    total_floats=320,
    n_examples=100,
    global_batch_size=10,
    micro_batches=4,
    update=UpdateRule("sgd", 0.9, False, 0.0, (0.9, 0.999), 1e-8),
)


@dataclass
class FakeServer:
    """The versions that a parameter server would have."""

    epoch: int = 0
    first: int = 0
    end: int = 0
    version: int = 0
    previous: int | None = None
    candidate: Assume | None = None

    def holdings(self) -> tuple[Holding, ...]:
        versions = [self.version] if self.previous is None else [self.version, self.previous]
        if self.first == self.end:
            return ()
        return tuple(Holding(self.epoch, version, self.first, self.end) for version in versions)


@dataclass
class World:
    """The coordinator, its tasks, its service and its disk. Tasks obey at once unless their name is in `mute`."""

    machine: Coordinator
    now: float = 1000.0
    connected: dict[str, TaskRole] = field(default_factory=dict)
    servers: dict[str, FakeServer] = field(default_factory=dict)
    mute: set[str] = field(default_factory=set)
    storage_error: str | None = None
    """Why checkpoints cannot be read."""
    origin: Manifest | None = None
    """The checkpoint of the job that this one starts from."""
    sent: list[tuple[str, ToTask]] = field(default_factory=list)
    journal: list[JournalRecord] = field(default_factory=list)
    reports: list[Formed] = field(default_factory=list)
    result: Ended | None = None
    manifests: list[Manifest] = field(default_factory=list)
    exit_code: int | None = None
    going: dict[str, Go] = field(default_factory=dict)
    loss: float = 1.0

    # --- what happens ------------------------------------------------------------------------------------------------

    def happens(self, event: Event) -> None:
        """Give the coordinator an event and carry out what it says, until nobody has anything to say."""
        events = [event]
        while events:
            for instruction in self.machine.handle(events.pop(0), self.now):
                events.extend(self._carry_out(instruction))
            self.check()

    def arrives(self, *names: str) -> None:
        for name in names:
            role, rank = TaskRole(name.split("-")[0]), int(name.split("-")[1])
            self.connected[name] = role
            is_server = role is TaskRole.SERVER
            if is_server:
                self.servers.setdefault(name, FakeServer())
            address = ("127.0.0.1", 1) if is_server else None
            hello = Hello(name, role, rank, "", "", address, None if is_server else PROFILE)
            self.happens(TaskArrived(hello))

    def is_lost(self, name: str) -> None:
        self.connected.pop(name, None)
        self.servers.pop(name, None)
        self.going.pop(name, None)
        self.happens(TaskLost(name))

    def wants(self, *names: str, directive: Directive = Directive.RUN) -> None:
        generation = self.machine.wanted.generation + 1 if self.machine.wanted else 1
        self.happens(WantedArrived(Wanted(generation, directive, frozenset(names))))

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.happens(Ticked())

    def says(self, name: str, message: FromTask) -> None:
        self.happens(MessageArrived(name, message))

    def step(self, *, only: Iterable[str] | None = None) -> None:
        """The workers (or some of them) finish the step that they are at."""
        for name in sorted(self.going) if only is None else only:
            go = self.going.pop(name)
            if only is None or not self.going:
                for server in self.servers.values():
                    if server.epoch == go.epoch and server.version == go.step:
                        server.previous, server.version = server.version, go.step + 1
            self.now += 0.1
            self.says(name, Done(go.epoch, go.step, self.loss, 5))

    # --- what the others do ------------------------------------------------------------------------------------------

    def _carry_out(self, instruction: Instruction) -> list[Event]:
        match instruction:
            case Send():
                return self._obey(instruction.task, instruction.message)
            case Append():
                self.journal.append(instruction.record)
            case TellMembership():
                self.reports.append(instruction.formed)
            case TellResult():
                self.result = instruction.ended
            case ReadCheckpoint():
                manifest = self.manifests[-1] if self.manifests else None
                if manifest is None and self.origin is not None:
                    return [CheckpointRead(instruction.epoch, self.origin, "origin/manifest", is_origin=True)]
                if self.storage_error is not None:
                    return [CheckpointRead(instruction.epoch, None, error=self.storage_error)]
                return [CheckpointRead(instruction.epoch, manifest, "manifest")]
            case WriteManifest():
                assert instruction.manifest.is_whole
                self.manifests.append(instruction.manifest)
                return [ManifestWritten(instruction.manifest.version, f"manifest-{instruction.manifest.version}")]
            case Stop():
                self.exit_code = instruction.code
            case _:
                pass
        return []

    def _obey(self, name: str, message: ToTask) -> list[Event]:
        if name not in self.connected:
            return []
        self.sent.append((name, message))
        if name in self.mute:
            return []
        if isinstance(message, Exit):
            self.connected.pop(name)
            return [TaskLost(name)]
        if name in self.servers:
            return [MessageArrived(name, answer) for answer in self._serve(self.servers[name], message)]
        return [MessageArrived(name, answer) for answer in self._work(name, message)]

    def _serve(self, server: FakeServer, message: ToTask) -> list[FromTask]:
        match message:
            case Halt():
                return [Halted(message.epoch, server.holdings())]
            case Assume():
                server.candidate = message
                return [Assumed(message.epoch)]
            case Release():
                assume = server.candidate
                assert assume is not None
                server.epoch, server.version, server.previous = assume.epoch, assume.version, None
                server.first, server.end = assume.first, assume.end
            case Save():
                assert message.version in (server.version, server.previous)
                file = ShardFile(server.first, server.end, f"v{message.version}", 1, "")
                return [
                    SnapshotTaken(message.epoch, message.version), Saved(message.epoch, message.version, file)
                ]  # fmt: skip
            case _:
                pass
        return []

    def _work(self, name: str, message: ToTask) -> list[FromTask]:
        match message:
            case Halt():
                self.going.pop(name, None)
            case Join():
                return [Joined(message.epoch)]
            case Go():
                self.going[name] = message
            case Evaluate():
                return [Evaluated(message.epoch, {"accuracy": 0.5, "bad": float("nan")})]
            case _:
                pass
        return []

    # --- what must always hold ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Epochs grow, are journaled before anybody hears of them, and nobody works for two of them."""
        formed = [record.epoch for record in self.journal if isinstance(record, Formed)]
        assert formed == sorted(set(formed))
        forming = {record.epoch for record in self.journal if isinstance(record, Forming)}
        heard = {message.epoch for _, message in self.sent if isinstance(message, Halt)}
        assert heard <= forming
        assert len({go.epoch for go in self.going.values()}) <= 1
        steps = sorted(go.step for go in self.going.values())
        assert self.machine.plan.is_async or len(set(steps)) <= 1
        assert not self.machine.plan.is_async or len(set(steps)) == len(steps)

    def messages(self, kind: type[ToTask]) -> list[ToTask]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    @property
    def last(self) -> Formed:
        return self.reports[-1]


def make_world(past: Past | None = None, **plan: Any) -> World:
    settings = JobPlan(**{"checkpoint_seconds": 1e9, **plan})
    return World(Coordinator(settings, past or Past(), 1000.0))


def running_world(workers: int = 2, servers: int = 1, **plan: Any) -> World:
    """A job that trains."""
    world = make_world(**plan)
    names = [f"server-{rank}" for rank in range(servers)] + [f"worker-{rank}" for rank in range(workers)]
    world.wants(*names)
    world.arrives(*names)
    assert world.going
    return world


def take_over(world: World, **plan: Any) -> World:
    """The coordinator dies; the next one reads its journal. The tasks are still to dial again."""
    settings = replace(world.machine.plan, **plan)
    successor = World(Coordinator(settings, replay(world.journal), world.now), now=world.now)
    successor.servers, successor.manifests = world.servers, world.manifests
    successor.journal = world.journal
    return successor
