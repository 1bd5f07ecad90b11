"""A coordinator's state machine with scripted tasks: no sockets, no clock, no files."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from optimus_contract.membership import Directive, WantedMembership, WantedTask
from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.coordinator.events import (
    Append,
    AskWanted,
    CheckpointRead,
    Effect,
    Event,
    ManifestWritten,
    MessageArrived,
    ReadCheckpoint,
    ReportCheckpoints,
    ReportMembership,
    ReportNote,
    ReportResult,
    ReportSilence,
    Send,
    Stop,
    TaskArrived,
    TaskLost,
    TaskSilent,
    Ticked,
    WantedArrived,
    WriteManifest,
)
from optimus_workers.coordinator.job_settings import JobSettings
from optimus_workers.coordinator.journal import Ended, Formed, Forming, JournalRecord, Past, replay
from optimus_workers.coordinator.state import State
from optimus_workers.coordinator.transitions import begin, handle
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

    state: State
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
    news: list[str] = field(default_factory=list)
    """Of checkpoints, and of tasks that do not answer."""
    result: Ended | None = None
    manifests: list[Manifest] = field(default_factory=list)
    exit_code: int | None = None
    going: dict[str, Go] = field(default_factory=dict)
    loss: float = 1.0
    asked: int = 0
    """How often the service was asked beside the poll; it answers when a test says so."""

    @classmethod
    def of(cls, settings: JobSettings, past: Past, now: float, **options: Any) -> Self:
        """The world of a coordinator that starts now, after the coordinators of `past`."""
        state, effects = begin(settings, past, now)
        world = cls(state, now=now, **options)
        for effect in effects:
            assert world._carry_out(effect) == []
        return world

    # --- what happens ------------------------------------------------------------------------------------------------

    def happens(self, event: Event) -> None:
        """Give the coordinator an event and carry out what it says, until nobody has anything to say."""
        events = [event]
        while events:
            for effect in handle(self.state, events.pop(0), self.now):
                events.extend(self._carry_out(effect))
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
            self.happens(TaskArrived(self._hello(hello)))

    def _hello(self, hello: Hello) -> Hello:
        return hello

    def is_silent(self, name: str) -> None:
        """It does not answer pings."""
        self.happens(TaskSilent(name, 30.0))
        self.is_lost(name)

    def is_lost(self, name: str) -> None:
        self.connected.pop(name, None)
        self.servers.pop(name, None)
        self.going.pop(name, None)
        self.happens(TaskLost(name))

    def wants(self, *names: str, directive: Directive = "run", **more: Any) -> None:
        generation = self.state.wanted.generation + 1 if self.state.wanted else 1
        self.happens(WantedArrived(wanted(generation, *names, directive=directive, **more)))

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

    def _carry_out(self, effect: Effect) -> list[Event]:
        match effect:
            case Send():
                return self._obey(effect.task, effect.message)
            case Append():
                self.journal.append(effect.record)
            case ReportMembership():
                self.reports.append(effect.formed)
            case ReportCheckpoints() | ReportSilence():
                self.news.append(effect.news)
            case ReportNote():
                self.news.append(effect.note.message)
            case ReportResult():
                self.result = effect.ended
            case AskWanted():
                self.asked += 1
            case ReadCheckpoint():
                manifest = self.manifests[-1] if self.manifests else None
                if manifest is None and self.origin is not None:
                    return [CheckpointRead(effect.epoch, self.origin, "origin/manifest", is_origin=True)]
                if self.storage_error is not None:
                    return [CheckpointRead(effect.epoch, None, error=self.storage_error)]
                return [CheckpointRead(effect.epoch, manifest, "manifest")]
            case WriteManifest():
                assert effect.manifest.is_whole
                self.manifests.append(effect.manifest)
                return [ManifestWritten(effect.manifest.version, f"manifest-{effect.manifest.version}")]
            case Stop():
                self.exit_code = effect.code
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
        assert self.state.settings.is_async or len(set(steps)) <= 1
        assert not self.state.settings.is_async or len(set(steps)) == len(steps)

    def messages(self, kind: type[ToTask]) -> list[ToTask]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    @property
    def last(self) -> Formed:
        return self.reports[-1]


@dataclass
class SlowWorld(World):
    """Answers are under way for a while: in order for each task and for the storage, in any order among them."""

    under_way: dict[str, list[Event]] = field(default_factory=dict)

    def happens(self, event: Event) -> None:
        for effect in handle(self.state, event, self.now):
            for answer in self._carry_out(effect):
                sender = answer.task if isinstance(answer, MessageArrived | TaskLost) else "storage"
                self.under_way.setdefault(sender, []).append(answer)
        self.check()

    def deliver(self, chance: random.Random, n: int | None = None) -> None:
        """`n` of the answers that are under way, or all, and those that they lead to."""
        while self.under_way and n != 0:
            sender = chance.choice(sorted(self.under_way))
            answers = self.under_way[sender]
            answer = answers.pop(0)
            if not answers:
                del self.under_way[sender]
            self.happens(answer)
            n = n and n - 1

    def arrives(self, *names: str) -> None:
        for name in names:
            if self.under_way.pop(name, None):
                self.happens(TaskLost(name))  # the end of the old connection comes before the new one
            super().arrives(name)

    def is_lost(self, name: str) -> None:
        self.under_way.pop(name, None)
        super().is_lost(name)


def wanted(generation: int, *names: str, directive: Directive = "run", **more: Any) -> WantedMembership:
    """What the service wants; names are `ROLE-RANK...`."""
    tasks = [
        WantedTask(name=name, role="server" if name.startswith("server") else "worker", rank=int(name.split("-")[1]))
        for name in sorted(names)
    ]
    return WantedMembership(generation=generation, directive=directive, tasks=tasks, **more)


def make_world(past: Past | None = None, **changes: Any) -> World:
    settings = JobSettings(**{"checkpoint_seconds": 1e9, **changes})
    return World.of(settings, past or Past(), 1000.0)


def running_world(workers: int = 2, servers: int = 1, **changes: Any) -> World:
    """A job that trains."""
    world = make_world(**changes)
    names = [f"server-{rank}" for rank in range(servers)] + [f"worker-{rank}" for rank in range(workers)]
    world.wants(*names)
    world.arrives(*names)
    assert world.going
    return world


def take_over(world: World, **changes: Any) -> World:
    """The coordinator dies; the next one reads its journal. The tasks are still to dial again."""
    settings = replace(world.state.settings, **changes)
    successor = World.of(settings, replay(world.journal), world.now)
    successor.servers, successor.manifests = world.servers, world.manifests
    successor.journal = world.journal
    return successor
