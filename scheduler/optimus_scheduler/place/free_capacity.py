"""What is free on each node while a round places tasks.

Nodes with equal free capacity form a class (`equivalence_classes`): a query such as "the fullest node that still holds
this" compares all classes at once. Its result depends on the free capacity only, never on the history.
"""

from __future__ import annotations

from collections.abc import Iterable

from optimus_scheduler.model import Node
from optimus_scheduler.model.amounts import Amounts, Vector, covers, minus, plus
from optimus_scheduler.place.equivalence_classes import NodeClasses
from optimus_scheduler.place.racks import Racks, rack_of


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

    def give_back(self, need: Vector, node: int) -> None:
        self._set(node, plus(self._free[node], need), grows=True)

    def _set(self, node: int, available: Vector, *, grows: bool) -> None:
        before, self._free[node] = self._free[node], available
        if self.is_open[node]:
            self.node_classes.move(node, available, grows=grows)
            self.racks.set(node, before, available)
