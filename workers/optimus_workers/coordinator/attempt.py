"""One attempt at a membership epoch: what each of its tasks is told, and who has answered. Pure.

halts() ─▶ every server says what it holds ─▶ cover() ─▶ assumes() ─▶ every server has its range
        ─▶ joins() ─▶ every worker has the parameters ─▶ formed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from optimus_workers.coordinator.instructions import Send
from optimus_workers.coordinator.membership import ConnectedTask, Cover, Members, newest_cover
from optimus_workers.wire.messages import Assume, Halt, Join, Release
from optimus_workers.wire.ranges import Range, server_ranges, worker_slots
from optimus_workers.wire.values import Holding, ServerRange, Source, TaskProfile, constant_batch


class Attempt:
    """The numbers and answers of one attempt; `awaiting`: the tasks whose answer the present phase needs."""

    def __init__(self, epoch: int, members: Members, profile: TaskProfile, *, is_async: bool) -> None:
        self.epoch = epoch
        self.members = members
        self.awaiting: set[str] = set()
        self.version = 0
        """What training goes on from, once `assumes` has been called."""
        self.batch = constant_batch(profile.global_batch_size, profile.micro_batches)
        """Of the membership's steps, once `version` is known (sync)."""
        self._profile = profile
        self._is_async = is_async
        self._held: dict[str, tuple[Holding, ...]] = {}
        self._brings_parameters = False

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Of each server."""
        return server_ranges(self._profile.total_floats, len(self.members.servers))

    @property
    def serving(self) -> tuple[str, ...]:
        """The servers that have something to serve: a tiny model may be too small for all of them."""
        pairs = zip(self.members.servers, self.ranges, strict=True)
        return tuple(name for name, (first, end) in pairs if first < end)

    def halts(self, tasks: Iterable[ConnectedTask]) -> list[Send]:
        """Everybody stops; every server, wanted or not, is asked what it holds."""
        listed = sorted(tasks, key=lambda task: task.name)
        self.awaiting = {task.name for task in listed if task.is_server}
        return [Send(task.name, Halt(self.epoch)) for task in listed]

    def halted(self, server: str, holdings: tuple[Holding, ...]) -> None:
        self._held[server] = holdings
        self.awaiting.discard(server)

    def cover(self, tasks: Mapping[str, ConnectedTask], oldest_epoch: int) -> Cover | None:
        """The newest state that the servers still there have together (see `newest_cover`)."""
        held = {name: holdings for name, holdings in self._held.items() if name in tasks}
        cover = newest_cover(
            held,
            {name: tasks[name].address for name in held},
            self._profile.total_floats,
            oldest_epoch=oldest_epoch,
            same_version=not self._is_async,
        )
        return cover and Cover(cover.version, tuple(_with_local_name(source, tasks) for source in cover.sources))

    def assumes(self, cover: Cover) -> list[Send]:
        """Each server gets its range from the sources that have it. No sources at all: worker 0 brings it."""
        self.version = cover.version
        self._brings_parameters = not cover.sources
        self.awaiting = set(self.members.servers)
        return [
            Send(name, self._assume(cover, first, end))
            for name, (first, end) in zip(self.members.servers, self.ranges, strict=True)
        ]

    def _assume(self, cover: Cover, first: int, end: int) -> Assume:
        n_workers, sources = len(self.members.workers), cover.part(first, end)
        return Assume(
            self.epoch, cover.version, first, end, self._profile, n_workers, self._is_async, sources, len(self.ranges)
        )

    def joins(self, tasks: Mapping[str, ConnectedTask], /) -> list[Send]:
        """The servers may forget what was before, the workers come and get the parameters."""
        self.awaiting = set(self.members.workers)
        servers = tuple(
            ServerRange(tasks[name].address, first, end, tasks[name].hello.local)
            for name, (first, end) in zip(self.members.servers, self.ranges, strict=True)
        )
        releases = [Send(name, Release(self.epoch)) for name in self.members.servers]
        return releases + [Send(name, self._join(rank, servers)) for rank, name in enumerate(self.members.workers)]

    def _join(self, rank: int, servers: tuple[ServerRange, ...]) -> Join:
        n_workers = len(self.members.workers)
        first_slot, end_slot = worker_slots(self.batch.slots, rank, n_workers)
        return Join(
            epoch=self.epoch,
            version=self.version,
            rank=rank,
            n_workers=n_workers,
            first_slot=first_slot,
            end_slot=end_slot,
            servers=servers,
            is_async=self._is_async,
            brings_parameters=rank == 0 and self._brings_parameters,
            batch=None if self._is_async else self.batch,
        )


def _with_local_name(source: Source, tasks: Mapping[str, ConnectedTask]) -> Source:
    task = tasks.get(source.task) if source.task else None
    return dataclasses.replace(source, local=task.hello.local if task else None)
