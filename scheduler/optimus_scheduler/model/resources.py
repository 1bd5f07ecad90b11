"""Amounts of resources, the nodes that have them, and what projects are guaranteed of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

NO_GPUS: Mapping[str, int] = MappingProxyType({})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


TOLERANCE = 1e-9
"""Cores, and all that is worked out with them, are compared to within so much: sums of fractions are not exact."""


# Dataclasses refuse unhashable defaults, which read-only mappings are: hence the factories.
def _no_gpus() -> Mapping[str, int]:
    return NO_GPUS


def _nothing_named() -> Mapping[str, str]:
    return _NO_LABELS


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each resource: CPU cores, memory in bytes, GPUs by type."""

    cpu: float = 0.0
    memory_bytes: int = 0
    gpus: Mapping[str, int] = field(default_factory=_no_gpus)

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu + other.cpu, self.memory_bytes + other.memory_bytes, _combine(self.gpus, other.gpus, 1)
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu - other.cpu, self.memory_bytes - other.memory_bytes, _combine(self.gpus, other.gpus, -1)
        )

    def __mul__(self, count: int) -> Resources:
        if count == 1:
            return self
        return Resources(
            self.cpu * count,
            self.memory_bytes * count,
            {gpu_type: number * count for gpu_type, number in self.gpus.items()},
        )

    def fits_in(self, available: Resources) -> bool:
        """Whether `available` holds this amount of every resource (cores are compared to within `TOLERANCE`)."""
        return (
            self.cpu <= available.cpu + TOLERANCE
            and self.memory_bytes <= available.memory_bytes
            and all(number <= available.gpus.get(gpu_type, 0) for gpu_type, number in self.gpus.items())
        )

    def dominant_share(self, capacity: Resources) -> float:
        """The largest fraction of `capacity` that this amount takes of any one resource.

        Infinite when something is asked for that the capacity has none of. (Ghodsi et al., NSDI 2011.)
        """
        shares = [_share(self.cpu, capacity.cpu), _share(self.memory_bytes, capacity.memory_bytes)]
        shares += [_share(number, capacity.gpus.get(gpu_type, 0)) for gpu_type, number in self.gpus.items()]
        return max(shares)


def gpu_type_of(resources: Resources) -> str | None:
    """The GPU type that is asked for; None if none is."""
    gpus = resources.gpus
    if not gpus:
        return None
    if len(gpus) == 1:  # nearly always
        ((gpu_type, count),) = gpus.items()
        return gpu_type if count > 0 else None
    return next((gpu_type for gpu_type, count in sorted(gpus.items()) if count > 0), None)


def remaining(capacity: Resources, taken: Resources) -> Resources:
    """`capacity` less `taken`, never below zero: a cluster that loses nodes may hold less than jobs have."""
    rest = capacity - taken
    gpus = {gpu_type: max(count, 0) for gpu_type, count in rest.gpus.items()}
    return Resources(max(rest.cpu, 0.0), max(rest.memory_bytes, 0), gpus)


def total_of(amounts: Iterable[Resources]) -> Resources:
    """All of them together, in one go: a cluster may have tens of thousands of nodes."""
    cpu, memory_bytes, gpus = 0.0, 0, dict[str, int]()
    for amount in amounts:
        cpu += amount.cpu
        memory_bytes += amount.memory_bytes
        for gpu_type, count in amount.gpus.items():
            gpus[gpu_type] = gpus.get(gpu_type, 0) + count
    return Resources(cpu, memory_bytes, dict(sorted(gpus.items())) if gpus else NO_GPUS)


def _combine(left: Mapping[str, int], right: Mapping[str, int], sign: int) -> Mapping[str, int]:
    if not right:
        return left
    if not left and sign > 0:
        return right
    return {gpu_type: left.get(gpu_type, 0) + sign * right.get(gpu_type, 0) for gpu_type in sorted({*left, *right})}


def _share(amount: float, capacity: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / capacity if capacity > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that tasks can be placed on. `capacity` is what Optimus may use of it."""

    name: str
    capacity: Resources
    schedulable: bool = True
    """False for a cordoned or lost node: nothing new is placed there."""
    labels: Mapping[str, str] = field(default_factory=_nothing_named)
    emptied: bool = False
    """True for a cordoned node that nothing may stay on either: its tasks are to move."""


def _key(amount: Resources) -> tuple[object, ...]:
    return amount.cpu, amount.memory_bytes, tuple(amount.gpus.items())


def _times(need: Resources, capacity: Resources) -> int:
    """How often `need` fits; what it asks for none of does not count."""
    parts = [(capacity.cpu + TOLERANCE, need.cpu), (capacity.memory_bytes, need.memory_bytes)]
    parts += [(capacity.gpus.get(gpu_type, 0), number) for gpu_type, number in need.gpus.items()]
    return min((int(have // asked) for have, asked in parts if asked > 0), default=0)


class Nodes(tuple[Node, ...]):
    """The nodes of a cluster, with what follows from all of them together: found out when it is first asked for."""

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Nodes:
        """`nodes` itself if it is one."""
        return nodes if isinstance(nodes, Nodes) else cls(nodes)

    @cached_property
    def capacity(self) -> Resources:
        """What the schedulable nodes offer together."""
        return total_of(node.capacity for node in self if node.schedulable)

    def most_on_one(self, need: Resources) -> int:
        """How often `need`, of a worker, fits on the node where it fits most often; 0: on none."""
        known = self._most_on_one.get(need_key := _key(need))
        if known is None:
            known = max((_times(need, node.capacity) for node in self.distinct), default=0)
            self._most_on_one[need_key] = known
        return known

    @cached_property
    def _most_on_one(self) -> dict[object, int]:
        """What was asked before."""
        return {}

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Each node."""
        return {node.name: node for node in self}

    @cached_property
    def is_open(self) -> Mapping[str, bool]:
        """Whether each node is schedulable, by name, without those that are being emptied."""
        return {node.name: node.schedulable for node in self if not node.emptied}

    @cached_property
    def open_names(self) -> frozenset[str]:
        """Of schedulable nodes."""
        return frozenset(node.name for node in self if node.schedulable)

    @cached_property
    def closed_names(self) -> frozenset[str]:
        """Of all others ..."""
        return frozenset(node.name for node in self if not node.schedulable)

    @cached_property
    def emptied_names(self) -> frozenset[str]:
        """... and of those among them that are being emptied."""
        return frozenset(node.name for node in self if node.emptied)

    @cached_property
    def distinct(self) -> tuple[Node, ...]:
        """One node of each kind: thousands of them are alike, where only what they offer counts."""
        found: dict[object, Node] = {}
        for node in self:
            capacity = node.capacity
            key = (node.schedulable, *_key(capacity))
            found.setdefault(key, node)
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Quota:
    """What a project is guaranteed of the cluster. What it does not use, others may borrow."""

    project: str
    share: float | None = None
    """Fraction of everything, 0 to 1."""
    cpu: float | None = None
    """CPU cores; with `memory_bytes` and `gpus` it overrules `share` for that resource."""
    memory_bytes: int | None = None
    gpus: Mapping[str, int] = field(default_factory=_no_gpus)
    may_borrow: bool = True
    """Whether it may have more than that while others leave it idle."""


@dataclass(frozen=True, slots=True)
class WorkerLimit:
    """How many workers the jobs of one owner, or of one project, hold together at most. One of both is given."""

    most: int
    owner: str | None = None
    project: str | None = None
    since: float = 0.0
    """Jobs that were submitted before are of an earlier owner of the name."""
