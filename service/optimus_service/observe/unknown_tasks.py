"""Tasks that run although the database knows nothing of their job: which they are and what they take. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from optimus_scheduler.model import Node, Resources, Role, Task, TaskPhase

_ONE_SLOT = Resources(1.0)
"""What a task takes that was started before clusters told it: the default of `resources`."""


def resources_of(task: Task) -> Resources:
    """What a task was started with, as its cluster tells. A coordinator counts as nothing, as in all plans."""
    if task.key.role is Role.COORDINATOR:
        return Resources()
    return _ONE_SLOT if task.resources is None else task.resources


def without_record(seen: Iterable[Task], known: Iterable[Task]) -> tuple[Task, ...]:
    """Living tasks of the cluster that are not among those which the database knows, sorted by key."""
    keys = {task.key for task in known}
    found = [task for task in seen if task.phase is not TaskPhase.EXITED and task.key not in keys]
    return tuple(sorted(found, key=lambda task: task.key))


def less(nodes: Iterable[Node], tasks: Iterable[Task]) -> tuple[Node, ...]:
    """The nodes without what these tasks take of them."""
    taken: dict[str, Resources] = {}
    for task in tasks:
        taken[task.node] = taken.get(task.node, Resources()) + resources_of(task)
    return tuple(replace(n, capacity=_rest(n.capacity, taken[n.name])) if n.name in taken else n for n in nodes)


def _rest(capacity: Resources, taken: Resources) -> Resources:
    gpus = {kind: max(count - taken.gpus.get(kind, 0), 0) for kind, count in capacity.gpus.items()}
    return Resources(max(capacity.cpu - taken.cpu, 0.0), max(capacity.memory_bytes - taken.memory_bytes, 0), gpus)
