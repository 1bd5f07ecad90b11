"""Resources as rows of whole numbers: quick to compare; giving back what was taken leaves exactly what was there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import add, le, sub

from optimus_scheduler.model import Resources

Vector = tuple[int, ...]
"""Cores in units of 1e-11, memory in bytes, then GPUs of each type."""

_CORE = 10**11
"""Fine enough that a core may be cut into any parts, coarse enough that a large cluster's sum has 63 bits."""
_NEVER = 2**52
"""Cores (in units) that are asked for in the place of GPUs of a type that no node has."""


class Amounts:
    """Translates resources for one cluster: the GPU types that it has are the columns."""

    def __init__(self, capacities: Iterable[Resources]) -> None:
        different = {id(capacity): capacity for capacity in capacities}
        self._gpu_types = tuple(sorted({gpu_type for capacity in different.values() for gpu_type in capacity.gpus}))

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return 2 + len(self._gpu_types)

    def need(self, resources: Resources) -> Vector:
        """What tasks ask for, fractions of a unit dropped."""
        gpus = resources.gpus
        if not gpus:
            return int(resources.cpu * _CORE), resources.memory_bytes, *(0,) * len(self._gpu_types)
        if any(count > 0 and gpu_type not in self._gpu_types for gpu_type, count in gpus.items()):
            return _NEVER, resources.memory_bytes, *(0,) * len(self._gpu_types)
        return (
            int(resources.cpu * _CORE),
            resources.memory_bytes,
            *(gpus.get(gpu_type, 0) for gpu_type in self._gpu_types),
        )

    def capacity_vectors(self, capacities: Sequence[Resources]) -> list[Vector]:
        """The room of each node; thousands of them are alike."""
        known = {id(capacity): self.available(capacity) for capacity in {id(c): c for c in capacities}.values()}
        return [known[id(capacity)] for capacity in capacities]

    def available(self, resources: Resources) -> Vector:
        """What a node offers, one unit added: two halves of what was rounded fit where the whole does."""
        gpus = resources.gpus
        return (
            int(resources.cpu * _CORE) + 1,
            resources.memory_bytes,
            *(gpus.get(gpu_type, 0) for gpu_type in self._gpu_types),
        )


def plus(left: Vector, right: Vector) -> Vector:
    return tuple(map(add, left, right))


def minus(left: Vector, right: Vector) -> Vector:
    return tuple(map(sub, left, right))


def times(need: Vector, count: int) -> Vector:
    return tuple([amount * count for amount in need])


@lru_cache(maxsize=2**15)
def together(worker: Vector, workers: int, server: Vector, servers: int) -> Vector:
    """What so many workers and servers need."""
    return tuple([w * workers + s * servers for w, s in zip(worker, server, strict=True)])


def covers(available: Vector, need: Vector) -> bool:
    """Whether `available` holds that much."""
    return all(map(le, need, available))


MANY = 1_000_000
"""More tasks than this no node holds, were they to need nothing at all."""


@lru_cache(maxsize=2**15)  # nodes have few different rooms
def holds(available: Vector, need: Vector) -> int:
    """How many tasks fit in there; none if it is overdrawn."""
    if min(available) < 0:
        return 0
    return min([free // amount for amount, free in zip(need, available, strict=True) if amount], default=MANY)
