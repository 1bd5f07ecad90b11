"""One attempt at a membership epoch: the messages to each of its tasks, and which tasks have answered. Pure.

Parameter servers:
    halts() ─▶ every server reports what it holds ─▶ newest_sources() ─▶ assumes() ─▶ every server has its range
            ─▶ joins() ─▶ every worker has the parameters ─▶ formed
All-reduce, where every worker holds the whole state:
    halts() ─▶ every worker reports which version it has ─▶ newest_sources() ─▶ joins() ─▶ every worker is in the new
            process group and has the newest version: from its own memory, broadcast by the root, or read from the
            checkpoint
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from optimus_workers.coordinator.events import Send
from optimus_workers.coordinator.membership import ConnectedTask, Members, VersionSources, newest_sources
from optimus_workers.wire.messages import (
    Assume,
    CommandQuiet,
    CommandStarted,
    CommandStopped,
    Halt,
    Join,
    Release,
    StartCommand,
    StopCommand,
)
from optimus_workers.wire.ranges import Range, server_ranges, worker_micro_batches
from optimus_workers.wire.values import Group, Holding, PauseParts, ServerRange, Source, TaskProfile, constant_batch


class Attempt:
    """One attempt of a job with parameter servers. `awaiting`: the tasks whose answer the present phase needs."""

    def __init__(self, epoch: int, members: Members, profile: TaskProfile, *, is_async: bool) -> None:
        self.epoch = epoch
        self.members = members
        self.awaiting: set[str] = set()
        self.version = 0
        """The version that training goes on from; known once `assumes` has been called."""
        self.batch = constant_batch(profile.global_batch_size, profile.micro_batches)
        """The batch of the membership's steps, once `version` is known (sync)."""
        self._profile = profile
        self._is_async = is_async
        self._held: dict[str, tuple[Holding, ...]] = {}
        self._brings_parameters = False

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The range of each server."""
        return server_ranges(self._profile.total_floats, len(self.members.servers))

    @property
    def serving(self) -> tuple[str, ...]:
        """The servers that have something to serve: a tiny model may be too small for all of them."""
        pairs = zip(self.members.servers, self.ranges, strict=True)
        return tuple(name for name, (first, end) in pairs if first < end)

    def halts(self, tasks: Iterable[ConnectedTask]) -> list[Send]:
        """Stop all tasks, and ask every server, wanted or not, what it holds."""
        listed = sorted(tasks, key=lambda task: task.name)
        self.awaiting = {task.name for task in listed if task.is_server}
        return [Send(task.name, Halt(self.epoch)) for task in listed]

    def halted(self, task: str, holdings: tuple[Holding, ...]) -> None:
        """A task has stopped and holds this."""
        self._held[task] = holdings
        self.awaiting.discard(task)

    def newest_sources(self, tasks: Mapping[str, ConnectedTask], oldest_epoch: int) -> VersionSources | None:
        """The newest state that the servers still there have together (see `newest_sources`)."""
        held = {name: holdings for name, holdings in self._held.items() if name in tasks}
        newest = newest_sources(
            held,
            {name: tasks[name].address for name in held},
            self._profile.total_floats,
            oldest_epoch=oldest_epoch,
            same_version=not self._is_async,
        )
        if newest is None:
            return None
        return VersionSources(newest.version, tuple(_with_local_name(source, tasks) for source in newest.sources))

    def assumes(self, newest: VersionSources) -> list[Send]:
        """Each server gets its range from the sources that have it; without any sources worker 0 brings it."""
        self.version = newest.version
        self._brings_parameters = not newest.sources
        self.awaiting = set(self.members.servers)
        return [
            Send(name, self._assume(newest, first, end))
            for name, (first, end) in zip(self.members.servers, self.ranges, strict=True)
        ]

    def _assume(self, newest: VersionSources, first: int, end: int) -> Assume:
        n_workers, sources = len(self.members.workers), newest.part(first, end)
        return Assume(
            self.epoch, newest.version, first, end, self._profile, n_workers, self._is_async, sources, len(self.ranges)
        )

    def joins(self, tasks: Mapping[str, ConnectedTask], /) -> list[Send]:
        """The servers may forget older states; the workers connect and get the parameters."""
        self.awaiting = set(self.members.workers)
        servers = tuple(
            ServerRange(tasks[name].address, first, end, tasks[name].hello.local)
            for name, (first, end) in zip(self.members.servers, self.ranges, strict=True)
        )
        releases = [Send(name, Release(self.epoch)) for name in self.members.servers]
        return releases + [Send(name, self._join(rank, servers)) for rank, name in enumerate(self.members.workers)]

    def _join(self, rank: int, servers: tuple[ServerRange, ...]) -> Join:
        n_workers = len(self.members.workers)
        first_slot, end_slot = worker_micro_batches(self.batch.slots, rank, n_workers)
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


class GroupAttempt(Attempt):
    """One attempt of an all-reduce job: the workers report what they hold, and no task assumes a range."""

    _root = 0
    _holders: frozenset[str] = frozenset()
    _files: tuple[Source, ...] = ()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The range that each worker writes of a checkpoint."""
        return server_ranges(self._profile.total_floats, len(self.members.workers))

    @property
    def serving(self) -> tuple[str, ...]:
        pairs = zip(self.members.workers, self.ranges, strict=True)
        return tuple(name for name, (first, end) in pairs if first < end)

    def halts(self, tasks: Iterable[ConnectedTask]) -> list[Send]:
        """Stop all tasks and wait for the members. A worker that leaves has nothing that they do not have."""
        listed = sorted(tasks, key=lambda task: task.name)
        self.awaiting = set(self.members.workers) & {task.name for task in listed}
        return [Send(task.name, Halt(self.epoch)) for task in listed]

    def newest_sources(self, tasks: Mapping[str, ConnectedTask], oldest_epoch: int) -> VersionSources | None:
        """The newest version that a member has. Two members differ by one at most: when a death cuts a step short,
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
        return VersionSources(version, (Source(0, self._profile.total_floats, version, task=root),))

    def _is_whole(self, holding: Holding) -> bool:
        return (holding.first, holding.end) == (0, self._profile.total_floats)

    def assumes(self, newest: VersionSources) -> list[Send]:
        """No task has to do anything yet. Without any sources training begins."""
        self.version = newest.version
        self.awaiting = set()
        self._files = tuple(source for source in newest.sources if source.file is not None)
        if self._files or not newest.sources:
            self._holders = frozenset()
        self._brings_parameters = not newest.sources
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


class ScriptAttempt(Attempt):
    """One attempt of a script: once the processes of the last membership have ended on all workers, new ones start.

    What they go on from is their own business; `version` is what worker 0 reports then, or has reported before.
    """

    def __init__(
        self,
        epoch: int,
        members: Members,
        profile: TaskProfile,
        *,
        version: int,
        at_once: bool,
        keeps_processes: bool = False,
    ) -> None:
        """`version`: steps completed as far as is known; `at_once`: a member is missing (see `StopCommand`);
        `keeps_processes`: those of all members run and go on."""
        super().__init__(epoch, members, profile, is_async=False)
        self.version = version
        self.keeps_processes = keeps_processes
        self.finished: set[str] = set()
        """Workers whose processes had ended well by themselves."""
        self._stop = StopCommand(epoch, at_once)
        """The newest order to the agents."""
        self._quiet: set[str] = set()
        """Workers whose processes write nothing."""
        self.pause = PauseParts()
        """As worker 0 of the last membership and of this one say."""
        self.untold_steps = 0
        """That were made in the last membership after `version`, by its pace."""
        self.trained_seconds = 0.0
        """For how long this one has trained when its first step is told."""

    def halts(self, tasks: Iterable[ConnectedTask]) -> list[Send]:
        """Stop the processes on all workers, and wait for those that leave as well: they may be saving."""
        names = [] if self.keeps_processes else sorted(task.name for task in tasks)
        self.awaiting = set(names)
        return [Send(name, self._stop) for name in names]

    def quiet(self, task: str, message: CommandQuiet) -> list[Send]:
        """A worker's processes write nothing, or do again, or look whether they should stop."""
        if self._stop.at_once:
            return []
        (self._quiet.add if message.quiet else self._quiet.discard)(task)
        return self._tell(is_asked=self._stop.is_asked or message.is_asked)

    def _tell(self, *, is_asked: bool) -> list[Send]:
        """One decision for all: processes that save together are ended together, or come to an end by themselves."""
        all_quiet = not is_asked and self.awaiting <= self._quiet
        stop = dataclasses.replace(self._stop, is_asked=is_asked, all_quiet=all_quiet)
        if stop == self._stop:
            return []
        self._stop = stop
        return [Send(name, stop) for name in sorted(self.awaiting)]

    def stopped(self, task: str, message: CommandStopped) -> list[Send]:
        """A worker's processes have ended."""
        self.awaiting.discard(task)
        self.version = max(self.version, message.step or 0)
        self.untold_steps = max(self.untold_steps, message.untold_steps)
        if message.since_step is not None and message.save_seconds is not None:
            stop = message.since_step - message.save_seconds
            self.pause = dataclasses.replace(self.pause, save_seconds=message.save_seconds, stop_seconds=stop)
        if message.finished:
            self.finished.add(task)
        return [] if self._stop.at_once else self._tell(is_asked=self._stop.is_asked)

    def started(self, task: str, message: CommandStarted) -> None:
        """A worker's processes run."""
        self.awaiting.discard(task)
        if message.step is not None:
            self.version = message.step
            start, load = message.start_seconds, message.load_seconds
            told_every, self.trained_seconds = message.told_every, message.trained_seconds
            self.pause = dataclasses.replace(self.pause, start_seconds=start, load_seconds=load, told_every=told_every)

    def newest_sources(self, tasks: Mapping[str, ConnectedTask], oldest_epoch: int) -> VersionSources:  # noqa: ARG002 - scripts keep state
        """As far as any worker came. No task hands anything over."""
        return VersionSources(self.version, ())

    def assumes(self, newest: VersionSources) -> list[Send]:
        """No task has to do anything yet."""
        self.version = newest.version
        return []

    def joins(self, _: Mapping[str, ConnectedTask]) -> list[Send]:
        workers = self.members.workers
        self.awaiting = set(workers)
        return [
            Send(name, StartCommand(self.epoch, rank, len(workers), self.version, self.batch, self.keeps_processes))
            for rank, name in enumerate(workers)
        ]


def _with_local_name(source: Source, tasks: Mapping[str, ConnectedTask]) -> Source:
    task = tasks.get(source.task) if source.task else None
    return dataclasses.replace(source, local=task.hello.local if task else None)
