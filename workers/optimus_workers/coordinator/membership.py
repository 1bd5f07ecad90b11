"""Which tasks should take part, and where the model's state comes from when that changes. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from optimus_workers.wire.messages import Hello
from optimus_workers.wire.values import Address, Holding, Source, TaskRole


@dataclass(slots=True)
class ConnectedTask:
    """A task whose control connection is open."""

    hello: Hello
    arrived_at: float
    wants_to_leave: bool = False
    """It got SIGTERM."""
    is_dismissed: bool = False
    """It was sent `Exit` and has not disconnected yet."""

    @property
    def name(self) -> str:
        return self.hello.task

    @property
    def is_server(self) -> bool:
        return self.hello.role is TaskRole.SERVER

    @property
    def may_take_part(self) -> bool:
        """Not on its way out; a worker without a profile could not load its task and is about to say why."""
        return not (self.wants_to_leave or self.is_dismissed) and (self.is_server or self.hello.profile is not None)

    @property
    def address(self) -> Address:
        assert self.hello.address is not None, "the shell lets no server in without an address"
        return self.hello.address


@dataclass(frozen=True, slots=True)
class Members:
    """The tasks of a membership by rank: a task's rank is its index."""

    workers: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    is_group: bool = False
    """Of an all-reduce job: without servers."""

    def __contains__(self, task: str) -> bool:
        return task in self.workers or task in self.servers

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.workers) | frozenset(self.servers)

    @property
    def can_train(self) -> bool:
        return bool(self.workers and (self.servers or self.is_group))


def choose_members(tasks: Mapping[str, ConnectedTask], wanted: Collection[str] | None, current: Members) -> Members:
    """The tasks that should take part now: those present that are `wanted` (None: all present).

    While no wanted task of a role is there, the present members of that role stay; one that asked to leave never does.
    """
    return Members(_choose(tasks, wanted, current, is_server=False), _choose(tasks, wanted, current, is_server=True))


def choose_group(
    tasks: Mapping[str, ConnectedTask], wanted: Collection[str] | None, current: Members, holders: Collection[str]
) -> Members:
    """The workers that should take part in an all-reduce job now. `holders`: those of the last membership, which have
    the state.

    When none of them is wanted any more, one stays for one more membership, to hand the state over to the new ones.
    """
    workers = _choose(tasks, wanted, current, is_server=False)
    if workers and not any(name in holders for name in workers):
        present = (name for name in sorted(holders) if name in tasks and not tasks[name].is_dismissed)
        workers += tuple(present)[:1]
    return Members(workers, (), is_group=True)


def _choose(
    tasks: Mapping[str, ConnectedTask], wanted: Collection[str] | None, current: Members, *, is_server: bool
) -> tuple[str, ...]:
    able = [task for task in tasks.values() if task.is_server == is_server and task.may_take_part]
    chosen = [task for task in able if wanted is None or task.name in wanted]
    if not chosen:
        chosen = [task for task in able if task.name in current]
    return tuple(task.name for task in sorted(chosen, key=lambda task: (task.hello.rank, task.name)))


@dataclass(frozen=True, slots=True)
class VersionSources:
    """A version, and a source of each part of the whole vector."""

    version: int
    sources: tuple[Source, ...]

    def part(self, first: int, end: int) -> tuple[Source, ...]:
        """The sources of the range [first, end)."""
        return tuple(source for source in self.sources if source.first < end and first < source.end)


@dataclass(frozen=True, slots=True)
class _Piece:
    holding: Holding
    task: str
    address: Address


def newest_sources(
    held: Mapping[str, tuple[Holding, ...]],
    addresses: Mapping[str, Address],
    total_floats: int,
    *,
    oldest_epoch: int,
    same_version: bool,
) -> VersionSources | None:
    """The newest version that the servers have together, or None when part of the vector is nowhere.

    `held`: server → what it holds. What was made before membership epoch `oldest_epoch` is of a history that was given
    up and is not used. Without `same_version` (async mode, where servers apply the same updates in different orders
    and a death may leave one of them half distributed) parts of different versions go together, newest first, and the
    result counts as the oldest of them.
    """
    pieces = [
        _Piece(holding, task, addresses[task])
        for task, holdings in sorted(held.items())
        for holding in holdings
        if holding.epoch >= oldest_epoch and holding.first < holding.end
    ]
    if not same_version:
        sources = _sources_of_all(pieces, total_floats)
        return VersionSources(min(source.version for source in sources), sources) if sources else None
    for version in sorted({piece.holding.version for piece in pieces}, reverse=True):
        sources = _sources_of_all([piece for piece in pieces if piece.holding.version == version], total_floats)
        if sources:
            return VersionSources(version, sources)
    return None


def _sources_of_all(pieces: list[_Piece], total_floats: int) -> tuple[Source, ...]:
    """Consecutive sources for [0, total_floats), the newest version at each place; empty if there is a gap."""
    sources: list[Source] = []
    bounds = sorted({0, total_floats, *_bounds(pieces)})
    for first, end in pairwise(bounds):
        here = [piece for piece in pieces if piece.holding.first <= first and end <= piece.holding.end]
        if not here:
            return ()
        best = max(here, key=lambda piece: (piece.holding.version, piece.holding.epoch))
        sources.append(Source(first, end, best.holding.version, task=best.task, address=best.address))
    return tuple(sources)


def _bounds(pieces: Iterable[_Piece]) -> Iterable[int]:
    for piece in pieces:
        yield piece.holding.first
        yield piece.holding.end


# --- network partitions: which task to replace when two tasks cannot connect to each other ---------------------------

DATA_LOST_SECONDS = 1.0
"""A broken data connection usually means that a task died; its control connection then ends at the same moment."""
MAX_FAILURES = 2
"""Broken or refused connections of a pair without a step in between, after which one of the two is replaced. One is
usual: the other task has just died, or moved."""


class Partition:
    """The data connections that failed since the last completed step, by worker and server."""

    def __init__(self) -> None:
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._data_lost_at: float | None = None

    def data_lost(self, now: float) -> None:
        """A data connection broke."""
        self._data_lost_at = now

    def forget_data_lost(self) -> None:
        """A new attempt at a membership makes all connections anew."""
        self._data_lost_at = None

    def take_overdue(self, now: float) -> bool:
        """Whether a data connection broke `DATA_LOST_SECONDS` ago; the answer is True once per loss."""
        if self._data_lost_at is None or now < self._data_lost_at + DATA_LOST_SECONDS:
            return False
        self._data_lost_at = None
        return True

    def add(self, worker: str, server: str) -> None:
        """`worker` could not reach `server`."""
        self._pairs[worker, server] += 1

    def clear(self) -> None:
        """A step was completed, so all members reach each other."""
        self._pairs.clear()

    def cut_off(self, members: Members) -> str | None:
        """The task to replace: the one in most pairs that keep failing; None: there is no such pair, or the membership
        could not train without any of them.

        A server is chosen only if others can take its range; of equals a worker is chosen, which holds no state.
        """
        failing = [pair for pair, n in self._pairs.items() if n >= MAX_FAILURES]
        involved = Counter(task for pair in failing for task in pair if task in members)
        able = {
            name: (n, name in members.workers)
            for name, n in involved.items()
            if len(members.workers if name in members.workers else members.servers) > 1
        }
        return max(sorted(able), key=lambda name: able[name]) if able else None
