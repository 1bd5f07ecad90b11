"""One attempt at a membership epoch of an all-reduce job, where every worker holds the whole state. Pure.

halts() ─▶ every worker says which version it has ─▶ cover() ─▶ joins() ─▶ every worker is of the new process group and
has the newest version: from its own memory, broadcast by the one that has it (the root), or read from the checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from optimus_workers.coordinator.attempt import Attempt
from optimus_workers.coordinator.instructions import Send
from optimus_workers.coordinator.membership import ConnectedTask, Cover
from optimus_workers.wire.messages import Halt
from optimus_workers.wire.ranges import Range, server_ranges
from optimus_workers.wire.values import Group, Holding, Source


class GroupAttempt(Attempt):
    """Like `Attempt`, without servers: the workers are asked what they hold, and nobody assumes anything."""

    _root = 0
    _holders: frozenset[str] = frozenset()
    _files: tuple[Source, ...] = ()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What each worker writes of a checkpoint."""
        return server_ranges(self._profile.total_floats, len(self.members.workers))

    @property
    def serving(self) -> tuple[str, ...]:
        pairs = zip(self.members.workers, self.ranges, strict=True)
        return tuple(name for name, (first, end) in pairs if first < end)

    def halts(self, tasks: Iterable[ConnectedTask]) -> list[Send]:
        """Everybody stops; the members are waited for. A worker that leaves has nothing that they do not have."""
        listed = sorted(tasks, key=lambda task: task.name)
        self.awaiting = set(self.members.workers) & {task.name for task in listed}
        return [Send(task.name, Halt(self.epoch)) for task in listed]

    def cover(self, tasks: Mapping[str, ConnectedTask], oldest_epoch: int) -> Cover | None:
        """The newest version that a member has. Two of them differ by one at most: when a death cuts a step short,
        some may have applied it already, and then the others take it from them; else it is repeated."""
        held = {
            name: holding
            for name in self.members.workers
            for holding in self._held.get(name, ())
            if name in tasks and holding.epoch >= oldest_epoch and self._is_whole(holding)
        }
        if not held:
            return None
        version = max(holding.version for holding in held.values())
        self._holders = frozenset(name for name, holding in held.items() if holding.version == version)
        root = next(name for name in self.members.workers if name in self._holders)
        return Cover(version, (Source(0, self._profile.total_floats, version, task=root),))

    def _is_whole(self, holding: Holding) -> bool:
        return (holding.first, holding.end) == (0, self._profile.total_floats)

    def assumes(self, cover: Cover) -> list[Send]:
        """Nobody has to do anything yet. No sources at all: training begins."""
        self.version = cover.version
        self.awaiting = set()
        self._files = tuple(source for source in cover.sources if source.file is not None)
        if self._files or not cover.sources:
            self._holders = frozenset()
        self._brings_parameters = not cover.sources
        self._root = next((rank for rank, name in enumerate(self.members.workers) if name in self._holders), 0)
        return []

    def joins(self, _: Mapping[str, ConnectedTask]) -> list[Send]:
        self.awaiting = set(self.members.workers)
        group = Group(self._root, shares_state=not self._holders >= set(self.members.workers), sources=self._files)
        joins = [(name, self._join(rank, ())) for rank, name in enumerate(self.members.workers)]
        return [
            Send(name, dataclasses.replace(join, group=group, brings_parameters=self._brings_parameters))
            for name, join in joins
        ]
