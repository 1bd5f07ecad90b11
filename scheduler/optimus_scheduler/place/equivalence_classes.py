"""Equivalence classes of nodes by their free capacity: a cluster has many nodes, but few different free vectors."""

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


class Domain(Protocol):
    """The whole cluster, or one rack of it, as a job sees it that is to be placed."""

    def tightest(self, need: Vector, count: int, taken: Collection[int]) -> list[int]:
        """`count` nodes that hold `need`, the fullest first, none of `taken`; fewer or none where there are fewer."""

    def emptiest(self, need: Vector, count: int, taken: Collection[int]) -> tuple[int, list[int]]:
        """How many tasks the nodes with most room hold each, and as many of these nodes as `count` tasks fill."""


@dataclass(slots=True)
class NodeClass:
    """Open nodes with the same free capacity."""

    available: Vector
    row: int
    """Its column in the arrays."""
    count: int = 0
    members: list[int] = field(default_factory=list)
    """A heap of node numbers; may hold stale and duplicate entries."""


class NodeClasses:
    """All classes with their free vectors side by side in arrays: one comparison covers every node."""

    def __init__(self, free_vectors: Sequence[Vector], open_nodes: Iterable[int], width: int) -> None:
        self._home: list[NodeClass | None] = [None] * len(free_vectors)
        self._node_classes: list[NodeClass] = []
        self._by_available: dict[Vector, NodeClass] = {}
        self._weights = weights_of(free_vectors)
        self._free_vectors: IntArray = np.zeros((width, 64), dtype=np.int64)
        self._weight: FloatArray = np.zeros(64)
        self._largest: dict[Vector, Vector | None] = {}
        by_available: dict[Vector, list[int]] = {}
        for node in open_nodes:
            by_available.setdefault(free_vectors[node], []).append(node)
        for available, members in by_available.items():
            node_class = self._new(available)
            node_class.members, node_class.count = members, len(members)  # rising numbers are a heap
            for node in members:
                self._home[node] = node_class

    # --- nodes change --------------------------------------------------------------------------------------------

    def move(self, node: int, available: Vector, *, grows: bool) -> None:
        """Move an open node to the class of its new free capacity, which is more or less than before."""
        home = self._home[node]
        assert home is not None, "only open nodes are in groups"
        if grows:
            self._largest.clear()
        home.count -= 1
        if not home.count:
            self._drop(home)
        elif len(home.members) > 64 + 2 * home.count:
            home.members = sorted({other for other in home.members if self._home[other] is home} - {node})
        node_class = self._by_available.get(available) or self._new(available)
        heappush(node_class.members, node)
        node_class.count += 1
        self._home[node] = node_class

    def _new(self, available: Vector) -> NodeClass:
        node_class = self._by_available[available] = NodeClass(available, len(self._node_classes))
        self._node_classes.append(node_class)
        self._write(node_class)
        return node_class

    def _drop(self, node_class: NodeClass) -> None:
        """The last group takes the place of one that has become empty."""
        del self._by_available[node_class.available]
        last = self._node_classes.pop()
        if last is not node_class:
            last.row = node_class.row
            self._node_classes[last.row] = last
            self._write(last)

    def _write(self, node_class: NodeClass) -> None:
        if node_class.row == len(self._weight):
            self._free_vectors = np.concatenate([self._free_vectors, np.zeros_like(self._free_vectors)], axis=1)
            self._weight = np.concatenate([self._weight, np.zeros_like(self._weight)])
        self._free_vectors[:, node_class.row] = node_class.available
        self._weight[node_class.row] = sum(map(float.__mul__, self._weights, map(float, node_class.available)))

    # --- questions -----------------------------------------------------------------------------------------------

    @property
    def free_vectors(self) -> IntArray:
        """(width, classes) the free capacity of each class."""
        return self._free_vectors[:, : len(self._node_classes)]

    def tightest(self, need: Vector, count: int, taken: Collection[int]) -> list[int]:
        """At most `count` nodes that hold `need`, the fullest first, none of `taken`."""
        rows = holding(self.free_vectors, need).nonzero()[0]
        found: list[int] = []
        while rows.size and len(found) < count:
            node_class = self._fullest(rows)
            found += self.first(node_class, count - len(found), taken)
            rows = rows[rows != node_class.row]
        return found

    def emptiest(self, need: Vector, count: int, taken: Collection[int]) -> tuple[int, list[int]]:
        """How many tasks the nodes with most room hold each, and as many of these nodes as `count` tasks fill."""
        fitting = most(self.free_vectors, need, count)
        while fitting.size and (largest := int(fitting.max())) > 0:
            node_class = self._fullest((fitting == largest).nonzero()[0])
            nodes = self.first(node_class, count // largest, taken)
            if nodes:
                return largest, nodes
            fitting[node_class.row] = 0
        return 0, []

    def _fullest(self, rows: NDArray[np.intp]) -> NodeClass:
        """Of equally full groups always the same one, whatever their order."""
        weights = self._weight[rows]
        first = weights.argmin()
        equal = weights == weights[first]
        if np.count_nonzero(equal) == 1:
            return self._node_classes[int(rows[first])]
        tied: list[int] = rows[equal].tolist()
        return min((self._node_classes[row] for row in tied), key=lambda node_class: node_class.available)

    def hold(self, need: Vector, count: int) -> bool:
        """Whether so many tasks fit, wherever."""
        fitting = most(self.free_vectors, need, count)
        for row in fitting.nonzero()[0].tolist():
            count -= int(fitting[row]) * self._node_classes[row].count
            if count <= 0:
                return True
        return count <= 0

    def largest_available(self, need: Vector) -> Vector | None:
        """The most of each resource that nodes which hold `need` have; None when there are none.

        An upper bound: it is cached until `forget_largest`.
        """
        if need not in self._largest:
            free_vectors = self.free_vectors[:, holding(self.free_vectors, need)]
            self._largest[need] = tuple(free_vectors.max(axis=1).tolist()) if free_vectors.size else None
        return self._largest[need]

    def forget_largest(self, need: Vector) -> None:
        """Drop the cached largest free capacity: there may be less by now."""
        self._largest.pop(need, None)

    def by_cores(self, count: int, need: Vector | None = None) -> list[int]:
        """The first `count` nodes by free cores, then by number; of those that hold `need`, if it is given."""
        cores = self.free_vectors[0]
        return self._ordered(
            cores if need is None else np.where(most(self.free_vectors, need, 1) > 0, cores, -1), count
        )

    def by_tasks(self, need: Vector, count: int) -> list[int]:
        """At most `count` nodes that hold a task, those that hold most of them first, then by number."""
        fitting = most(self.free_vectors, need, MANY)
        return self._ordered(np.where(fitting > 0, fitting, -1), count)

    def most_suitable(self, needs: tuple[Vector, Vector], whole: Vector, count: int) -> list[int]:
        """Nodes that hold most of `whole` in proportion, then those that hold most tasks of either kind."""
        parts = [free / amount for free, amount in zip(self.free_vectors, whole, strict=True) if amount]
        suitable: FloatArray = np.min(parts, axis=0) if parts else np.ones(len(self._node_classes))
        found = self._highest(suitable, count)
        for need in needs:
            found += self._highest(most(self.free_vectors, need, count).astype(np.float64), count)
        return list(dict.fromkeys(found))

    def _highest(self, scores: FloatArray, count: int) -> list[int]:
        """At most `count` nodes with scores above 0, the highest first; of equal scores the fullest."""
        least = np.partition(scores, -count)[-count] if count < len(scores) else 0.0
        rows = ((scores >= least) & (scores > 0)).nonzero()[0]
        found: list[int] = []
        for row in rows[np.lexsort((*self.free_vectors[:, rows], self._weight[rows], -scores[rows]))].tolist():
            found += self.first(self._node_classes[row], count - len(found), ())
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
            node_classes = [self._node_classes[row] for row in order[begin:end].tolist()]
            found += sorted(node for node_class in node_classes for node in self.first(node_class, count, ()))
            begin = end
        return found[:count]

    def first(self, node_class: NodeClass, count: int, taken: Collection[int]) -> list[int]:
        """At most `count` nodes of a group, the lowest numbers first, none of `taken`."""
        found: list[int] = []
        seen: list[int] = []
        while node_class.members and len(found) < count:
            node = heappop(node_class.members)
            if self._home[node] is node_class and (not seen or seen[-1] != node):
                seen.append(node)
                if node not in taken:
                    found.append(node)
        for node in seen:
            heappush(node_class.members, node)
        return found


def holding(free_vectors: Rows, need: Vector) -> NDArray[np.bool_]:
    """(n,) which of (width, n) rooms hold `need`."""
    enough: NDArray[np.bool_] | None = None
    for amount, free in zip(_asked(need), free_vectors, strict=True):
        if amount is not None:
            enough = free >= amount if enough is None else np.logical_and(enough, free >= amount, out=enough)
    assert enough is not None, "there are cores at least"
    return enough


@lru_cache(maxsize=2**15)
def _asked(need: Vector) -> tuple[IntArray | None, ...]:
    """As arrays of no dimension, which are compared in half the time of Python's numbers; None where nothing is asked.

    Zero cores still require a node that is not overdrawn.
    """
    return tuple([np.array(x, dtype=np.int64) if x or not column else None for column, x in enumerate(need)])


def most(free_vectors: Rows, need: Vector, count: int) -> IntArray:
    """(n,) how many tasks each of (width, n) rooms holds, at most `count`."""
    fitting: IntArray | None = None
    for amount, free in zip(need, free_vectors, strict=True):
        if amount:
            more = free // amount
            fitting = np.minimum(more, count) if fitting is None else np.minimum(fitting, more, out=fitting)
    return np.full(len(free_vectors[0]), count, dtype=np.int64) if fitting is None else fitting


def weights_of(free_vectors: Collection[Vector]) -> list[float]:
    """How much one unit of each resource counts when rooms are compared: a whole node's amount counts 1, GPUs more."""
    largest = [max(amounts) for amounts in zip(*set(free_vectors), strict=True)]
    return [(1.0 if column < 2 else _GPU_WEIGHT) / max(amount, 1) for column, amount in enumerate(largest)]
