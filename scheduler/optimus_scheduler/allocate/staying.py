"""Where jobs have tasks that may stay, and what a cluster of which some nodes are closed has to share out with that."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from optimus_scheduler.forecast.gpu_types import has_left_its_type
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import (
    Allocation,
    Job,
    JobSpec,
    Nodes,
    PlacedTask,
    Resources,
    Role,
    Snapshot,
    TaskKey,
    TaskPhase,
    total_of,
)
from optimus_scheduler.place.requests import CurrentNodes, TaskSlot

_NAMED = 3
"""Closed nodes that are named."""
_NOTHING: Mapping[str, Resources] = MappingProxyType({})


class OnClosed(NamedTuple):
    """What jobs hold on closed nodes. It is theirs while they stay: nobody else can have it."""

    held: Mapping[str, Resources] = _NOTHING
    """By project, also of those without a quota; projects that hold nothing there are left out."""
    whole: Resources = Resources()
    """What all nodes have, closed ones, too: by that it is told what of `held` is within a quota."""


NONE_CLOSED = OnClosed()


class Room(NamedTuple):
    """What a round shares out."""

    capacity: Resources
    """What schedulable nodes offer, and what jobs hold on closed ones."""
    closed: OnClosed = NONE_CLOSED


def room_of(snapshot: Snapshot, current: CurrentNodes | None = None) -> Room:
    """What the round of `snapshot` shares out. `current`: where jobs have tasks that may stay (`CurrentSlots`), by
    which it is found out sooner."""
    closed = Nodes.of(snapshot.nodes).closed_names
    if not closed:
        return Room(snapshot.capacity)
    current = CurrentSlots().of(snapshot) if current is None else current
    held: dict[str, list[Resources]] = {}
    for job in snapshot.jobs:
        for (role, _), node in current[job.id].items():
            if node in closed:
                need = (job.spec.worker if role is Role.WORKER else job.spec.server).resources
                held.setdefault(job.spec.project, []).append(need)
    return with_closed(snapshot, {project: total_of(needs) for project, needs in held.items()})


def with_closed(snapshot: Snapshot, held: Mapping[str, Resources]) -> Room:
    """The same where it is known what the jobs of each project hold on closed nodes; none but those that do."""
    if not held:
        return Room(snapshot.capacity)
    whole = total_of(node.capacity for node in snapshot.nodes)
    return Room(total_of((snapshot.capacity, *held.values())), OnClosed(held, whole))


CLOSED_OR_LOST = "Closed or lost"
"""Begins the sentence that names such nodes."""


def closed_words(nodes: Nodes) -> str | None:
    """Which nodes are closed, or lost, in a sentence; None: none is."""
    names = sorted(nodes.closed_names)
    return f"{CLOSED_OR_LOST}: {', '.join(names[:_NAMED])}{' and others' * (len(names) > _NAMED)}." if names else None


def size_of(outlook: Outlook, tasks: Collection[TaskSlot]) -> Allocation:
    """So many workers and servers."""
    return outlook.size(*(sum(slot[0] is role for slot in tasks) for role in (Role.WORKER, Role.SERVER)))


class CurrentSlots:
    """Finds where each job has tasks that may stay, and keeps what it found in the round before.

    A job with the same tasks on nodes that are still open has the very same mapping. Belongs to one shell; not to be
    shared between threads.
    """

    def __init__(self) -> None:
        self._is_open: Mapping[str, bool] = {}
        self._known: dict[str, tuple[tuple[PlacedTask, ...], Mapping[TaskSlot, str], Allocation, JobSpec]] = {}
        """Of jobs that leave nothing behind: with the tasks that they want, and what says whether they have left their
        GPU type."""

    def of(self, snapshot: Snapshot) -> dict[str, Mapping[TaskSlot, str]]:
        """On nodes that are not being emptied, on cordoned ones while the tasks live.

        By job id, an entry for every job. Workers of a job that changes its GPU type do not stay.
        """
        is_open = Nodes.of(snapshot.nodes).is_open
        if is_open is not self._is_open and is_open != self._is_open:
            self._known = {}
        before, self._is_open, self._known = self._known, is_open, {}
        kept = self._known
        live: frozenset[TaskKey] = frozenset()
        if not all(is_open.values()):
            live = frozenset(task.key for task in snapshot.tasks if task.phase is not TaskPhase.EXITED)
        found: dict[str, Mapping[TaskSlot, str]] = {}
        for job in snapshot.jobs:
            job_id, wanted = job.id, job.wanted_tasks
            known = before.get(job_id)
            if known is None:
                slots = None
            elif known[0] is wanted and known[2] is job.allocation and known[3] is job.spec:  # most, without a call
                found[job_id] = known[1]
                kept[job_id] = known
                continue
            else:
                slots = known[1] if known[0] == wanted and not has_left_its_type(job) else None
            if slots is None:
                slots = _current(job, is_open, live)
                stay = len(slots) == len(wanted) and all(is_open[node] for node in slots.values())
                if not stay:
                    found[job_id] = slots
                    continue
            found[job_id] = slots
            kept[job_id] = wanted, slots, job.allocation, job.spec
        return found


def _current(job: Job, is_open: Mapping[str, bool], live: frozenset[TaskKey]) -> dict[TaskSlot, str]:
    leaves = has_left_its_type(job)
    return {
        (role, rank): node
        for key, node in job.wanted_tasks
        for _, role, rank, _ in (key,)
        if (is_open.get(node, False) or (node in is_open and key in live)) and not (leaves and role is Role.WORKER)
    }
