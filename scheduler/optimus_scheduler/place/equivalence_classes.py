"""Nodes by what is free on them: a cluster has many nodes, but few different rooms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model.amounts import MANY, Vector

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Rows = Sequence[IntArray] | IntArray
"""(width, n), in one array or one of each resource."""

_GPU_WEIGHT = 4.0
"""A free GPU weighs so many times as much as as large a part of a node's cores: few tasks can use it."""


class View(Protocol):
    """The whole cluster, or one rack of it, as a job sees it that is to be placed."""

    def tightest(self, need: Vector, count: int, taken: Collection[int]) -> list[int]:
        """`count` nodes that hold `need`, the fullest first, none of `taken`; fewer or none where there are fewer."""

    def roomiest(self, need: Vector, count: int, taken: Collection[int]) -> tuple[int, list[int]]:
        """How many tasks the nodes with most room hold each, and as many of these nodes as `count` tasks fill."""


@dataclass(slots=True)
class Group:
    """Open nodes with the same room."""

    room: Vector
    row: int
    """Its column in the arrays."""
    count: int = 0
    members: list[int] = field(default_factory=list)
    """A heap of their numbers. Those that have left are still in it, and nobody is in it once only for certain."""


class Groups:
    """All groups with their rooms side by side in arrays, so that one comparison looks at every node there is."""

    def __init__(self, rooms: Sequence[Vector], open_nodes: Iterable[int], width: int) -> None:
        self._home: list[Group | None] = [None] * len(rooms)
        self._groups: list[Group] = []
        self._by_room: dict[Vector, Group] = {}
        self._weights = weights_of(rooms)
        self._rooms: IntArray = np.zeros((width, 64), dtype=np.int64)
        self._weight: FloatArray = np.zeros(64)
        self._largest: dict[Vector, Vector | None] = {}
        by_room: dict[Vector, list[int]] = {}
        for node in open_nodes:
            by_room.setdefault(rooms[node], []).append(node)
        for room, members in by_room.items():
            group = self._new(room)
            group.members, group.count = members, len(members)  # rising numbers are a heap
            for node in members:
                self._home[node] = group

    # --- nodes change --------------------------------------------------------------------------------------------

    def move(self, node: int, room: Vector, *, grows: bool) -> None:
        """An open node has other room now, more or less than before."""
        home = self._home[node]
        assert home is not None, "only open nodes are in groups"
        if grows:
            self._largest.clear()
        home.count -= 1
        if not home.count:
            self._drop(home)
        elif len(home.members) > 64 + 2 * home.count:
            home.members = sorted({other for other in home.members if self._home[other] is home} - {node})
        group = self._by_room.get(room) or self._new(room)
        heappush(group.members, node)
        group.count += 1
        self._home[node] = group

    def _new(self, room: Vector) -> Group:
        group = self._by_room[room] = Group(room, len(self._groups))
        self._groups.append(group)
        self._write(group)
        return group

    def _drop(self, group: Group) -> None:
        """The last group takes the place of one that has become empty."""
        del self._by_room[group.room]
        last = self._groups.pop()
        if last is not group:
            last.row = group.row
            self._groups[last.row] = last
            self._write(last)

    def _write(self, group: Group) -> None:
        if group.row == len(self._weight):
            self._rooms = np.concatenate([self._rooms, np.zeros_like(self._rooms)], axis=1)
            self._weight = np.concatenate([self._weight, np.zeros_like(self._weight)])
        self._rooms[:, group.row] = group.room
        self._weight[group.row] = sum(map(float.__mul__, self._weights, map(float, group.room)))

    # --- questions -----------------------------------------------------------------------------------------------

    @property
    def rooms(self) -> IntArray:
        """(width, groups) the room of each group."""
        return self._rooms[:, : len(self._groups)]

    def tightest(self, need: Vector, count: int, taken: Collection[int]) -> list[int]:
        """At most `count` nodes that hold `need`, the fullest first, none of `taken`."""
        rows = holding(self.rooms, need).nonzero()[0]
        found: list[int] = []
        while rows.size and len(found) < count:
            group = self._fullest(rows)
            found += self.first(group, count - len(found), taken)
            rows = rows[rows != group.row]
        return found

    def roomiest(self, need: Vector, count: int, taken: Collection[int]) -> tuple[int, list[int]]:
        """How many tasks the nodes with most room hold each, and as many of these nodes as `count` tasks fill."""
        held = most(self.rooms, need, count)
        while held.size and (largest := int(held.max())) > 0:
            group = self._fullest((held == largest).nonzero()[0])
            nodes = self.first(group, count // largest, taken)
            if nodes:
                return largest, nodes
            held[group.row] = 0
        return 0, []

    def _fullest(self, rows: NDArray[np.intp]) -> Group:
        """Of equally full groups always the same one, whatever their order."""
        weights = self._weight[rows]
        first = weights.argmin()
        equal = weights == weights[first]
        if np.count_nonzero(equal) == 1:
            return self._groups[int(rows[first])]
        tied: list[int] = rows[equal].tolist()
        return min((self._groups[row] for row in tied), key=lambda group: group.room)

    def hold(self, need: Vector, count: int) -> bool:
        """Whether so many tasks fit, wherever."""
        held = most(self.rooms, need, count)
        for row in held.nonzero()[0].tolist():
            count -= int(held[row]) * self._groups[row].count
            if count <= 0:
                return True
        return count <= 0

    def largest_room(self, need: Vector) -> Vector | None:
        """The most of each resource that nodes which hold `need` have; None when there are none.

        Or had: it is remembered until `forget_largest`, as it changes rarely and is only hoped for.
        """
        if need not in self._largest:
            rooms = self.rooms[:, holding(self.rooms, need)]
            self._largest[need] = tuple(rooms.max(axis=1).tolist()) if rooms.size else None
        return self._largest[need]

    def forget_largest(self, need: Vector) -> None:
        """There may be less room by now."""
        self._largest.pop(need, None)

    def by_cores(self, count: int, need: Vector | None = None) -> list[int]:
        """The first `count` nodes by free cores, then by number; of those that hold `need`, if it is given."""
        cores = self.rooms[0]
        return self._ordered(cores if need is None else np.where(most(self.rooms, need, 1) > 0, cores, -1), count)

    def by_tasks(self, need: Vector, count: int) -> list[int]:
        """At most `count` nodes that hold a task, those that hold most of them first, then by number."""
        held = most(self.rooms, need, MANY)
        return self._ordered(np.where(held > 0, held, -1), count)

    def most_suitable(self, needs: tuple[Vector, Vector], whole: Vector, count: int) -> list[int]:
        """Nodes that hold most of `whole` in proportion, then those that hold most tasks of either kind."""
        parts = [free / amount for free, amount in zip(self.rooms, whole, strict=True) if amount]
        suitable: FloatArray = np.min(parts, axis=0) if parts else np.ones(len(self._groups))
        found = self._roomiest_of(suitable, count)
        for need in needs:
            found += self._roomiest_of(most(self.rooms, need, count).astype(np.float64), count)
        return list(dict.fromkeys(found))

    def _roomiest_of(self, scores: FloatArray, count: int) -> list[int]:
        """At most `count` nodes with scores above 0, the highest first; of equal scores the fullest."""
        least = np.partition(scores, -count)[-count] if count < len(scores) else 0.0
        rows = ((scores >= least) & (scores > 0)).nonzero()[0]
        found: list[int] = []
        for row in rows[np.lexsort((*self.rooms[:, rows], self._weight[rows], -scores[rows]))].tolist():
            found += self.first(self._groups[row], count - len(found), ())
            if len(found) == count:
                break
        return found

    def _ordered(self, scores: IntArray, count: int) -> list[int]:
        """At most `count` nodes, the highest scores first, then by number; none of groups with negative scores."""
        found: list[int] = []
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]) + 1, len(ranked)).tolist()
        begin = 0
        for end in ends:
            if not len(ranked) or ranked[begin] < 0 or len(found) >= count:
                break
            groups = [self._groups[row] for row in order[begin:end].tolist()]
            found += sorted(node for group in groups for node in self.first(group, count, ()))
            begin = end
        return found[:count]

    def first(self, group: Group, count: int, taken: Collection[int]) -> list[int]:
        """At most `count` nodes of a group, the lowest numbers first, none of `taken`."""
        found: list[int] = []
        seen: list[int] = []
        while group.members and len(found) < count:
            node = heappop(group.members)
            if self._home[node] is group and (not seen or seen[-1] != node):
                seen.append(node)
                if node not in taken:
                    found.append(node)
        for node in seen:
            heappush(group.members, node)
        return found


def holding(rooms: Rows, need: Vector) -> NDArray[np.bool_]:
    """(n,) which of (width, n) rooms hold `need`."""
    enough: NDArray[np.bool_] | None = None
    for amount, free in zip(_asked(need), rooms, strict=True):
        if amount is not None:
            enough = free >= amount if enough is None else np.logical_and(enough, free >= amount, out=enough)
    assert enough is not None, "there are cores at least"
    return enough


@lru_cache(maxsize=2**15)
def _asked(need: Vector) -> tuple[IntArray | None, ...]:
    """As arrays of no dimension, which are compared in half the time of Python's numbers; None where nothing is asked.

    Who asks for no cores gets them nowhere for nothing: an overdrawn node does not even have these.
    """
    return tuple([np.array(x, dtype=np.int64) if x or not column else None for column, x in enumerate(need)])


def most(rooms: Rows, need: Vector, count: int) -> IntArray:
    """(n,) how many tasks each of (width, n) rooms holds, at most `count`."""
    held: IntArray | None = None
    for amount, free in zip(need, rooms, strict=True):
        if amount:
            more = free // amount
            held = np.minimum(more, count) if held is None else np.minimum(held, more, out=held)
    return np.full(len(rooms[0]), count, dtype=np.int64) if held is None else held


def weights_of(rooms: Collection[Vector]) -> list[float]:
    """How much one unit of each resource counts when rooms are compared: a whole node's amount counts 1, GPUs more."""
    largest = [max(amounts) for amounts in zip(*set(rooms), strict=True)]
    return [(1.0 if column < 2 else _GPU_WEIGHT) / max(amount, 1) for column, amount in enumerate(largest)]
