"""Workers that are much slower than the others of their job move to another node that has free capacity.

In sync training the slowest worker sets the pace of all. One move per job and round: the membership that follows is
measured anew. Between rounds nothing needs to be remembered, for a wanted task stays on the node that it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optimus_scheduler.model import Directive, Job, Node, Resources, Role, Snapshot, TaskKey
from optimus_scheduler.reconcile import Want


def move_stragglers(snapshot: Snapshot, wants: Mapping[str, Want]) -> dict[str, Want]:
    """`wants`, with another node for one straggler of each job that has one."""
    jobs = {job.id: job for job in snapshot.jobs}
    slow = {job.id: key for job in snapshot.jobs if (key := _slowest(job, wants[job.id])) is not None}
    if not slow:
        return dict(wants)
    free = _free_capacity(jobs, snapshot.nodes, wants)
    moved = dict(wants)
    for job_id, key in sorted(slow.items()):
        want, need = wants[job_id], jobs[job_id].spec.on(wants[job_id].allocation.gpu_type).need(Role.WORKER)
        slot = key.role, key.rank
        here = want.nodes[slot]
        free_capacity = [node for node, available in free.items() if node != here and need.fits_in(available)]
        if free_capacity:
            # Beside as many others of the job as can be: they talk to each other.
            beside = list(want.nodes.values())
            there = min(free_capacity, key=lambda node: (-beside.count(node), node))
            free[there] -= need
            moved[job_id] = want._replace(nodes={**want.nodes, slot: there})
    return moved


def _slowest(job: Job, want: Want) -> TaskKey | None:
    """The first of the job's stragglers that is wanted and would stay where it is."""
    if not job.stragglers or want.directive is not Directive.RUN:
        return None
    stays = {
        placed.key for placed in job.wanted_tasks if want.nodes.get((placed.key.role, placed.key.rank)) == placed.node
    }
    return next((key for key in job.stragglers if key in stays), None)


def _free_capacity(jobs: Mapping[str, Job], nodes: Iterable[Node], wants: Mapping[str, Want]) -> dict[str, Resources]:
    """What is left of each schedulable node."""
    free = {node.name: node.capacity for node in nodes if node.schedulable}
    for job_id, want in wants.items():
        spec = jobs[job_id].spec.on(want.allocation.gpu_type)
        for (role, _), node in want.nodes.items():
            if node in free:
                free[node] -= spec.need(role)
    return free
