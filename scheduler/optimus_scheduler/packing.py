"""Where the workers of an all-reduce job go: on few nodes, because what they exchange inside one node is nearly free.

Without servers there is no transfer between roles to weigh (see `transfer`): the number of nodes is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from optimus_scheduler.types import Resources


class Space(Protocol):
    """A node as one job sees it; `transfer.Space` is one."""

    @property
    def node(self) -> str: ...
    @property
    def room(self) -> Resources: ...
    @property
    def is_used(self) -> bool: ...


Counts = Mapping[str, tuple[int, int]]


def pack_emptiest(spaces: Sequence[Space], worker: Resources, workers: int) -> Counts | None:
    """Fill the node with most room, then the next; None when the nodes do not hold them all.

    The fewest nodes that can hold the job: the paper's rule for jobs without servers.
    """
    return _fill(sorted(spaces, key=lambda space: (-holds(space.room, worker), space.node)), worker, workers)


def pack_closely(spaces: Sequence[Space], worker: Resources, workers: int) -> Counts | None:
    """The fewest nodes, those that the job uses first; the rest goes where it leaves least room unused.

    Leaves whole nodes free for jobs that need them. None when the nodes do not hold all workers.
    """
    counts: dict[str, tuple[int, int]] = {}
    left = workers
    free = {space.node: holds(space.room, worker) for space in spaces}
    used = {space.node for space in spaces if space.is_used}
    while left:
        open_nodes = [node for node, count in free.items() if count > 0]
        if not open_nodes:
            return None
        node = min(open_nodes, key=lambda node: _closeness(node, node in used, free[node], left))
        taken = min(free.pop(node), left)
        counts[node], left = (taken, 0), left - taken
    return counts


def _closeness(node: str, is_used: bool, free: int, left: int) -> tuple[bool, bool, int, str]:
    """Sorts nodes: the job's own, then the fullest that holds all that is left, else the emptiest."""
    holds_all = free >= left
    return (not is_used, not holds_all, free if holds_all else -free, node)


def _fill(ordered: Sequence[Space], worker: Resources, workers: int) -> Counts | None:
    counts: dict[str, tuple[int, int]] = {}
    left = workers
    for space in ordered:
        taken = min(holds(space.room, worker), left)
        if taken:
            counts[space.node], left = (taken, 0), left - taken
        if not left:
            return counts
    return None


_MANY = 1e6
"""More workers than this no node holds, were they to need nothing at all."""


def holds(room: Resources, worker: Resources) -> int:
    """How many workers `room` holds."""
    limits = [_MANY]
    if worker.cpu > 0:
        limits.append((room.cpu + 1e-9) // worker.cpu)
    if worker.memory_bytes > 0:
        limits.append(room.memory_bytes // worker.memory_bytes)
    limits += [room.gpus.get(kind, 0) // count for kind, count in worker.gpus.items() if count > 0]
    return max(int(min(limits)), 0)
