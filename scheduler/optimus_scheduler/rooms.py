"""What is free on each node while a round places tasks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice

from optimus_scheduler.types import Node, Resources

_Entry = tuple[int, float, int, str]
"""Free GPUs, CPU and memory, negated, and the name: sorts the emptiest node first, and never ties."""


class Rooms:
    """Free resources by node, and the schedulable nodes in order of what is free on them.

    Nodes with and without GPUs are ordered apart, so that the emptiest of each are at hand.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
        self._free = {name: node.capacity for name, node in self._nodes.items()}
        self._order: dict[bool, list[_Entry]] = {False: [], True: []}
        for name, node in self._nodes.items():
            if node.schedulable:
                self._order[bool(node.capacity.gpus)].append(self._entry(name))
        for entries in self._order.values():
            entries.sort()

    def free(self, name: str) -> Resources:
        """What is left on a node, whether or not anything new may go there."""
        return self._free[name]

    def fits(self, need: Resources, name: str) -> bool:
        """Whether the node exists and has that much left."""
        return name in self._free and need.fits_in(self._free[name])

    def is_open(self, name: str) -> bool:
        """Whether new tasks may go there."""
        return self._nodes[name].schedulable

    def take(self, need: Resources, name: str) -> None:
        self._set(name, self._free[name] - need)

    def give_back(self, need: Resources, name: str) -> None:
        self._set(name, self._free[name] + need)

    def emptiest(self, count: int | None = None) -> list[str]:
        """Schedulable nodes, at most `count` with and `count` without GPUs, the emptiest of each first."""
        return [name for entries in self._order.values() for *_, name in islice(entries, count)]

    def __len__(self) -> int:
        """Schedulable nodes."""
        return sum(map(len, self._order.values()))

    def _set(self, name: str, free: Resources) -> None:
        entries = self._order[bool(self._nodes[name].capacity.gpus)]
        if self.is_open(name):
            del entries[bisect_left(entries, self._entry(name))]
        self._free[name] = free
        if self.is_open(name):
            insort(entries, self._entry(name))

    def _entry(self, name: str) -> _Entry:
        free = self._free[name]
        return -sum(free.gpus.values()), -free.cpu, -free.memory_bytes, name
