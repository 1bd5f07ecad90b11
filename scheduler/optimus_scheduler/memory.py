"""What a shell may keep from one round to the next, so that a round in which little has changed is sooner done.

A plan does not depend on it: it holds answers to questions that will be asked again, and what they were answered from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optimus_scheduler.constraints.gpu_types import has_left_its_type
from optimus_scheduler.place import Placer
from optimus_scheduler.requests import Post
from optimus_scheduler.types import Job, Node, PlacedTask, Role, Snapshot, TaskKey, TaskPhase

Held = Mapping[str, Mapping[Post, str]]
"""Job id → the nodes of the tasks that it has and that may stay."""


class HeldPosts:
    """Where each job has tasks that may stay: on nodes that exist, and on cordoned ones only while they live.

    Workers of a job that changes its GPU type do not stay. Jobs whose wanted tasks are the very same value as in the
    round before are not looked at again.
    """

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._open: frozenset[str] = frozenset()
        self._closed: frozenset[str] = frozenset()
        self._known: dict[str, tuple[tuple[PlacedTask, ...], bool, Mapping[Post, str]]] = {}

    def of(self, snapshot: Snapshot) -> Held:
        """By job id; an entry for every job."""
        if snapshot.nodes is not self._nodes and snapshot.nodes != self._nodes:
            self._nodes, self._known = snapshot.nodes, {}
            self._open = frozenset(node.name for node in snapshot.nodes if node.schedulable)
            self._closed = frozenset(node.name for node in snapshot.nodes if not node.schedulable)
        known, self._known = self._known, {}
        live = _live(snapshot) if self._closed else frozenset()
        return {job.id: self._of(job, live, known) for job in snapshot.jobs}

    def _of(
        self,
        job: Job,
        live: frozenset[TaskKey],
        known: Mapping[str, tuple[tuple[PlacedTask, ...], bool, Mapping[Post, str]]],
    ) -> Mapping[Post, str]:
        leaves = has_left_its_type(job)
        before = known.get(job.id)
        if before is not None and before[0] is job.wanted_tasks and before[1] == leaves:
            self._known[job.id] = before
            return before[2]
        stays = [task for task in job.wanted_tasks if not (leaves and task.key.role is Role.WORKER)]
        held = {
            (task.key.role, task.key.rank): task.node
            for task in stays
            if task.node in self._open or (task.node in self._closed and task.key in live)
        }
        if not any(task.node in self._closed for task in stays):
            self._known[job.id] = (job.wanted_tasks, leaves, held)
        return held


def _live(snapshot: Snapshot) -> frozenset[TaskKey]:
    return frozenset(task.key for task in snapshot.tasks if task.phase is not TaskPhase.EXITED)


@dataclass(slots=True)
class Memory:
    """Belongs to one shell; not to be shared between threads."""

    held_posts: HeldPosts = field(default_factory=HeldPosts)
    placer: Placer = field(default_factory=Placer)
