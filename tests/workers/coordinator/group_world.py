"""A coordinator's state machine with scripted workers of an all-reduce job."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from tests.workers.coordinator.harness import PROFILE, World

from optimus_workers.coordinator.job_settings import JobSettings
from optimus_workers.coordinator.journal import Past
from optimus_workers.wire.messages import Done, FromTask, Halt, Halted, Join, Joined, Save, Saved, SnapshotTaken, ToTask
from optimus_workers.wire.ranges import server_ranges
from optimus_workers.wire.values import Holding, ShardFile


@dataclass
class GroupWorld(World):
    """Workers hold the state: the history of steps that led to it, which must never fork."""

    states: dict[str, Holding] = field(default_factory=dict)
    joins: dict[str, Join] = field(default_factory=dict)

    def is_lost(self, name: str) -> None:
        self.states.pop(name, None)
        self.joins.pop(name, None)
        super().is_lost(name)

    def applies(self, names: Collection[str]) -> None:
        """These workers have the sum and update; they tell nobody yet."""
        for name in names:
            go = self.going[name]
            assert self.states[name].version == go.step
            self.states[name] = replace(self.states[name], version=go.step + 1)

    def tells(self, names: Collection[str]) -> None:
        for name in names:
            go = self.going.pop(name)
            self.now += 0.1
            self.says(name, Done(go.epoch, go.step, self.loss, 5))

    def steps(self, n: int = 1) -> None:
        for _ in range(n):
            names = sorted(self.going)
            self.applies(names)
            self.tells(names)

    def _work(self, name: str, message: ToTask) -> list[FromTask]:
        answers = super()._work(name, message)
        match message:
            case Halt():
                held = self.states.get(name)
                return [Halted(message.epoch, () if held is None else (held,))]
            case Join():
                return self._join(name, message)
            case Save():
                join = self.joins[name]
                assert self.states[name].version == message.version
                first, end = server_ranges(PROFILE.total_floats, join.n_workers)[join.rank]
                file = ShardFile(first, end, f"v{message.version}-{first}", 1, "")
                return [SnapshotTaken(message.epoch, message.version), Saved(message.epoch, message.version, file)]
            case _:
                return answers

    def _join(self, name: str, join: Join) -> list[FromTask]:
        """Everybody joins at once: a state comes from the root's memory, or from what the root reads or makes."""
        assert join.group is not None
        assert not join.servers
        self.joins[name] = join
        root = self.state.members.workers[join.group.root]
        in_memory = not (join.group.sources or join.brings_parameters)
        if in_memory:
            assert self.states[root].version == join.version, "the root has what it is to share"
        if not join.group.shares_state:
            assert self.states[name].version == join.version, "nobody lacks it"
        self.states[name] = Holding(join.epoch, join.version, 0, PROFILE.total_floats)
        return [Joined(join.epoch)]


def group_world(workers: int = 2, past: Past | None = None, **changes: Any) -> GroupWorld:
    """A job that trains, or (without workers) is about to."""
    settings = JobSettings(**{"checkpoint_seconds": 1e9, "is_allreduce": True, **changes})
    world = GroupWorld.of(settings, past or Past(), 1000.0)
    if workers:
        names = [f"worker-{rank}" for rank in range(workers)]
        world.wants(*names)
        world.arrives(*names)
        assert world.going
    return world
