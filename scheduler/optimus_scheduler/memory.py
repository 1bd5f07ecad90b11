"""What a shell may keep from one round to the next, so that a round in which little has changed is sooner done.

A plan does not depend on it: it holds answers to questions that will be asked again, and what they were answered from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from optimus_scheduler.constraints.gpu_types import has_left_its_type
from optimus_scheduler.placement.asking import Requests
from optimus_scheduler.placement.place import Placer
from optimus_scheduler.placement.requests import Held, Post
from optimus_scheduler.policies.base import Kept
from optimus_scheduler.types import Job, Node, Role, Snapshot, TaskKey, TaskPhase


class _Known(NamedTuple):
    """Where a job has tasks that may stay, and what that was found from."""

    job: Job
    leaves: bool
    nodes: Mapping[Post, str]


class HeldPosts:
    """Where each job has tasks that may stay: on nodes that exist, and on cordoned ones only while they live.

    Workers of a job that changes its GPU type do not stay. Jobs whose wanted tasks are the very same value as in the
    round before are not looked at again.
    """

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._open: frozenset[str] = frozenset()
        self._closed: frozenset[str] = frozenset()
        self._known: dict[str, _Known] = {}

    def of(self, snapshot: Snapshot) -> Held:
        """By job id; an entry for every job."""
        if snapshot.nodes is not self._nodes and snapshot.nodes != self._nodes:
            self._nodes, self._known = snapshot.nodes, {}
            self._open = frozenset(node.name for node in snapshot.nodes if node.schedulable)
            self._closed = frozenset(node.name for node in snapshot.nodes if not node.schedulable)
        before, self._known = self._known, {}
        live = _live(snapshot) if self._closed else frozenset()
        held: dict[str, Mapping[Post, str]] = {}
        for job in snapshot.jobs:
            known = before.get(job.id)
            if known is None or known.job is not job:
                known = self._of(job, live, known)
            held[job.id] = known.nodes
            if not self._closed or not any(task.node in self._closed for task in job.wanted_tasks):
                self._known[job.id] = known
        return held

    def _of(self, job: Job, live: frozenset[TaskKey], before: _Known | None) -> _Known:
        leaves = has_left_its_type(job)
        if before is not None and before.job.wanted_tasks is job.wanted_tasks and before.leaves == leaves:
            return _Known(job, leaves, before.nodes)
        held = {
            (task.key.role, task.key.rank): task.node
            for task in job.wanted_tasks
            if not (leaves and task.key.role is Role.WORKER)
            and (task.node in self._open or (task.node in self._closed and task.key in live))
        }
        return _Known(job, leaves, held)


def _live(snapshot: Snapshot) -> frozenset[TaskKey]:
    return frozenset(task.key for task in snapshot.tasks if task.phase is not TaskPhase.EXITED)


@dataclass(slots=True)
class Memory:
    """Belongs to one shell; not to be shared between threads."""

    held_posts: HeldPosts = field(default_factory=HeldPosts)
    requests: Requests = field(default_factory=Requests)
    placer: Placer = field(default_factory=Placer)
    kept: Kept = field(default_factory=Kept)
