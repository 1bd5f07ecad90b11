"""What is free on each node while a round places tasks.

Nodes with equal free capacity form a class (`equivalence_classes`): a query such as "the fullest node that still holds
this" compares all classes at once. Its result depends on the free capacity only, never on the history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model import Node
from optimus_scheduler.model.amounts import Amounts, Vector, covers, minus, plus, together
from optimus_scheduler.place.equivalence_classes import FloatArray, IntArray, NodeClasses, holding, most, weights_of

# --- Nodes by rack, from their labels: the traffic of one job should stay below one switch ---------------------------

RACK_LABELS = ("topology.kubernetes.io/rack", "rack")
ZONE_LABELS = ("topology.kubernetes.io/zone", "zone")

_REMEMBERED = 2**14
"""Rooms of which the weight is remembered: nodes have few different ones."""


def rack_of(node: Node) -> tuple[str, str]:
    """Zone and rack of a node, as far as it has labels for them."""
    labels = node.labels
    if not labels:
        return _NOWHERE
    zone = labels.get(ZONE_LABELS[0]) or labels.get(ZONE_LABELS[1], "")
    return zone, labels.get(RACK_LABELS[0]) or labels.get(RACK_LABELS[1], "")


_NOWHERE = ("", "")


class Rack:
    """The nodes of one rack, seen by a job that is to be placed."""

    def __init__(self, nodes: slice, free_capacity: Sequence[IntArray], weight: FloatArray) -> None:
        """`free_capacity` and `weight` of all nodes."""
        self._first: int = nodes.start
        self._free_capacity = [free[nodes] for free in free_capacity]
        self._weight = weight[nodes]

    def tightest(self, need: Vector, count: int, taken: Collection[int]) -> list[int]:
        """`count` nodes that hold `need`, the fullest first, none of `taken`; fewer or none where there are fewer."""
        columns = holding(self._free_capacity, need).nonzero()[0]
        return self._fullest(columns, count, taken) if len(columns) >= count else []

    def emptiest(self, need: Vector, count: int, taken: Collection[int]) -> tuple[int, list[int]]:
        """How many tasks the nodes with most room hold each, and as many of these nodes as `count` tasks fill."""
        fitting = most(self._free_capacity, need, count)
        if taken:
            fitting[[node - self._first for node in taken if 0 <= node - self._first < len(fitting)]] = 0
        largest = int(np.maximum.reduce(fitting, initial=0))
        if largest <= 0:
            return 0, []
        return largest, self._fullest((fitting == largest).nonzero()[0], count // largest, ())

    def _fullest(self, columns: NDArray[np.intp], count: int, taken: Collection[int]) -> list[int]:
        if count == 1 and not taken:
            return [int(columns[self._weight[columns].argmin()]) + self._first]
        found: list[int] = []
        for column in columns[self._weight[columns].argsort(kind="stable")].tolist():
            if column + self._first not in taken:
                found.append(column + self._first)
                if len(found) == count:
                    break
        return found


class Racks:
    """What is free in each rack as a whole. Nodes of a rack have neighbouring numbers."""

    def __init__(
        self, places: Sequence[tuple[str, str]], free_capacity: Sequence[Vector], is_open: Sequence[bool]
    ) -> None:
        self._starts = [i for i, place in enumerate(places) if i == 0 or place != places[i - 1]]
        self.are_known = len(self._starts) > 1
        if not self.are_known:
            return
        self._starts.append(len(free_capacity))
        starts = self._starts[:-1]
        different = {each: number for number, each in enumerate(dict.fromkeys(free_capacity))}  # nodes have few
        free: IntArray = np.array(list(different), dtype=np.int64).T[:, [different[each] for each in free_capacity]]
        open_only = np.where(is_open, free, 0)
        free[:, ~np.array(is_open)] = -1
        # Arrays by resource, of nodes and of racks: single numbers are quick to set in them.
        self._free = list(free)
        self._totals: list[IntArray] = list(np.add.reduceat(open_only, starts, axis=1))
        self._total: list[list[int]] = np.stack(self._totals, axis=1).tolist()
        self._rack: list[int] = np.repeat(np.arange(len(starts)), np.diff(self._starts)).tolist()
        self._weights = weights_of(free_capacity)
        self._known_weights: dict[Vector, float] = {}
        self._node_weight: FloatArray = self._weigh(self._free)
        self._rack_weight: FloatArray = self._weigh(self._totals)
        self._changed: dict[int, tuple[Vector, Vector]] = {}
        self._seen: dict[int, Rack] = {}

    def _weigh(self, free_capacity: Sequence[IntArray]) -> FloatArray:
        """(n,) weights of rooms (n,) of each resource, added up in the order of the resources as in `_weight`."""
        total = np.asarray(self._weights[0] * free_capacity[0], dtype=np.float64)
        for weight, amounts in zip(self._weights[1:], free_capacity[1:], strict=True):
            total = total + weight * amounts
        return total

    def _weight(self, available: Sequence[int]) -> float:
        total = self._weights[0] * available[0]
        for weight, amount in zip(self._weights[1:], available[1:], strict=True):
            total += weight * amount
        return total

    def set(self, node: int, before: Vector, available: Vector) -> None:
        """Update the free capacity of an open node."""
        if self.are_known:
            known = self._changed.get(node)
            self._changed[node] = (before if known is None else known[0], available)

    def _refresh(self) -> None:
        """Take the changes since the last question into the arrays, all at once."""
        weights, racks = self._known_weights, set[int]()
        rack_of_node, totals, free, node_weight = self._rack, self._total, self._free, self._node_weight
        for node, (before, available) in self._changed.items():
            rack = rack_of_node[node]
            racks.add(rack)
            total = totals[rack]
            for resource, (old, new) in enumerate(zip(before, available, strict=True)):
                if old != new:
                    free[resource][node] = new
                    total[resource] += new - old
            weight = weights.get(available)
            if weight is None:
                if len(weights) >= _REMEMBERED:
                    weights.clear()
                weight = weights[available] = self._weight(available)
            node_weight[node] = weight
        for rack in racks:
            total = self._total[rack]
            for amounts, amount in zip(self._totals, total, strict=True):
                amounts[rack] = amount
            self._rack_weight[rack] = self._weight(total)
        self._changed.clear()

    def for_job(self, need: Vector, near: Collection[int]) -> Iterator[Rack]:
        """Racks with that much room, of those with nodes of `near`, if there are any: the fullest, then the emptiest.

        The fullest keeps others free for large jobs, but what is left in it may be in pieces; who finds no place in the
        emptiest one hardly finds one in another.
        """
        if not self.are_known:
            return
        if self._changed:
            self._refresh()
        enough = holding(self._totals, need)
        if near:
            enough &= np.isin(np.arange(len(enough)), [self._rack[node] for node in near])
        able = enough.nonzero()[0]
        if not len(able):
            return
        weights = self._rack_weight[able]
        fullest, emptiest = int(able[weights.argmin()]), int(able[weights.argmax()])
        yield self._one(fullest)
        if emptiest != fullest:
            yield self._one(emptiest)

    def _one(self, rack: int) -> Rack:
        found = self._seen.get(rack)  # a view of the arrays, which are changed in place
        if found is None:
            nodes = slice(self._starts[rack], self._starts[rack + 1])
            found = self._seen[rack] = Rack(nodes, self._free, self._node_weight)
        return found


class FreeCapacity:
    """Free amounts by node. Nodes are numbered by zone, rack and name: neighbours have neighbouring numbers."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        given = tuple(nodes)
        placed = sorted([(rack_of(node), node.name, number) for number, node in enumerate(given)])
        ordered = [given[number] for _, _, number in placed]
        self.names = [node.name for node in ordered]
        self.index = {name: number for number, name in enumerate(self.names)}
        self.is_open = [node.schedulable for node in ordered]
        self.amounts = Amounts([node.capacity for node in ordered])
        self._free = self.amounts.capacity_vectors([node.capacity for node in ordered])
        open_nodes = [number for number, is_open in enumerate(self.is_open) if is_open]
        self.node_classes = NodeClasses(self._free, open_nodes, self.amounts.width)
        self.racks = Racks([rack for rack, _, _ in placed], self._free, self.is_open)
        self._closed = (-1,) * self.amounts.width

    def __len__(self) -> int:
        return len(self.names)

    def free(self, node: int) -> Vector:
        """What is left on a node, whether or not anything new may go there."""
        return self._free[node]

    def open_capacity(self, node: int) -> Vector:
        """What new tasks may use there: nothing on a cordoned node."""
        return self._free[node] if self.is_open[node] else self._closed

    def fits(self, need: Vector, node: int) -> bool:
        return covers(self._free[node], need)

    def take(self, need: Vector, node: int) -> None:
        self._set(node, minus(self._free[node], need), grows=False)

    def take_all(self, worker: Vector, server: Vector, added: Mapping[int, tuple[int, int]]) -> None:
        """Take what so many workers and servers need on each of these nodes."""
        needs: dict[tuple[int, int], Vector] = {}  # most nodes get the same
        for node, counts in added.items():
            need = needs.get(counts)
            if need is None:
                need = needs[counts] = together(worker, counts[0], server, counts[1])
            self._set(node, minus(self._free[node], need), grows=False)

    def give_back(self, need: Vector, node: int) -> None:
        self._set(node, plus(self._free[node], need), grows=True)

    def _set(self, node: int, available: Vector, *, grows: bool) -> None:
        before, self._free[node] = self._free[node], available
        if self.is_open[node]:
            self.node_classes.move(node, available, grows=grows)
            self.racks.set(node, before, available)
