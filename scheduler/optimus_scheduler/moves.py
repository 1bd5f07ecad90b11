"""Moves to other nodes: of running jobs so that a waiting one can start, and of workers that are slower than others.

A move stops a job as a change of size does: what is free may lie in pieces. It pays if the work that is lost by the
stops, with the margin of a change, is less than what the waiting job can do until one of those jobs ends: so long it
would wait otherwise. Work is counted in parts of the cluster times seconds.

In sync training the slowest worker sets the pace of all. One worker moves per job and round: the membership that
follows is measured anew. Between rounds nothing is remembered, as a wanted task stays on the node that it was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Directive, Job, Node, Resources, Role, Snapshot, TaskKey
from optimus_scheduler.reconcile import Want
from optimus_scheduler.settings import Settings


class Moves:
    """Which jobs may move for others in one placement, and those that do."""

    def __init__(self, outlooks: Sequence[Outlook], capacity: Resources, settings: Settings) -> None:
        self._all, self._capacity, self._settings = outlooks, capacity, settings
        self.made: dict[str, str] = {}
        """By the id of each job that moves, the id of the one that starts in its place."""

    @cached_property
    def _outlooks(self) -> dict[str, Outlook]:
        return {one.id: one for one in self._all}

    def movable(self) -> Sequence[str]:
        """Jobs that may move, those that lose least by it first."""
        found = [one for one in self._all if may_move(one, self._settings)]
        return [one.id for one in sorted(found, key=lambda one: (self._loss(one), one.id))]

    def pay(self, waiting: str, moved: Sequence[str]) -> bool:
        """Whether these moves are worth the start of the job that waits."""
        one, others = self._outlooks[waiting], [self._outlooks[job_id] for job_id in moved]
        seconds = min((other.remaining_seconds(other.present) for other in others), default=0.0)
        gain = one.demand(one.minimum).dominant_share(self._capacity) * seconds
        return sum(map(self._loss, others)) <= gain

    def _loss(self, one: Outlook) -> float:
        share = one.demand(one.present).dominant_share(self._capacity)
        return self._settings.rescale_margin * one.stop_seconds * share


def may_move(one: Outlook, settings: Settings) -> bool:
    """Not a job that would lose work or might miss its deadline, was changed a moment ago, or ends in this round."""
    job = one.job
    stays = job.directive is not Directive.RUN or one.forecast.converged or job.spec.deadline_at is not None
    is_settled = one.has_tasks and one.allocated_seconds >= settings.least_run_seconds
    return is_settled and job.unsaved_seconds <= 0 and not stays


def move_stragglers(snapshot: Snapshot, wants: Mapping[str, Want]) -> dict[str, Want]:
    """`wants`, with another node for one straggler of each job that has one."""
    slow = {
        job.id: key for job in snapshot.jobs if job.stragglers and (key := _slowest(job, wants[job.id])) is not None
    }
    if not slow:
        return dict(wants)
    jobs = {job.id: job for job in snapshot.jobs}
    free = free_capacity(jobs, snapshot.nodes, wants)
    moved = dict(wants)
    for job_id, key in sorted(slow.items()):
        want, need = wants[job_id], jobs[job_id].spec.on(wants[job_id].allocation.gpu_type).need(Role.WORKER)
        slot = key.role, key.rank
        here = want.nodes[slot]
        with_room = [node for node, available in free.items() if node != here and need.fits_in(available)]
        if with_room:
            # Beside as many others of the job as can be: they talk to each other.
            beside = list(want.nodes.values())
            there = min(with_room, key=lambda node: (-beside.count(node), node))
            free[there] -= need
            moved[job_id] = want._replace(nodes={**want.nodes, slot: there})
    return moved


def _slowest(job: Job, want: Want) -> TaskKey | None:
    """The first of the job's stragglers that is wanted and would stay where it is."""
    if want.directive is not Directive.RUN:
        return None
    stays = {
        placed.key for placed in job.wanted_tasks if want.nodes.get((placed.key.role, placed.key.rank)) == placed.node
    }
    return next((key for key in job.stragglers if key in stays), None)


def free_capacity(jobs: Mapping[str, Job], nodes: Iterable[Node], wants: Mapping[str, Want]) -> dict[str, Resources]:
    """What is left of each schedulable node."""
    free = {node.name: node.capacity for node in nodes if node.schedulable}
    for job_id, want in wants.items():
        spec = jobs[job_id].spec.on(want.allocation.gpu_type)
        for (role, node), count in Counter([(role, node) for (role, _), node in want.nodes.items()]).items():
            if node in free:
                free[node] -= spec.need(role) * count
    return free
