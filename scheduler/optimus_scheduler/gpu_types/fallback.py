"""Jobs that found no place on the GPU type that was chosen for them, though another one has free GPUs.

The choice counts GPUs; it sees neither cores nor how GPUs are spread over nodes. So once places are known, such a job
does without that type, and the round is planned again, `round.MOST_PASSES` times at most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from optimus_scheduler.forecast.gpu_types import ANY_GPU, accepted_types, has_left_its_type
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Directive, Job, Node, Nodes, Snapshot
from optimus_scheduler.place.place import Placed, Placements


def with_fallback_types(reported: Snapshot, outlooks: Sequence[Outlook], placements: Placements) -> Snapshot | None:
    """The snapshot with fewer types for jobs that are stuck; None when no job is.

    `outlooks` are those that were placed, each on one type; `reported` has the types that owners accept.
    """
    without = [one for one in outlooks if not isinstance(placements.get(one.id), Placed)]
    if not without:
        return None
    jobs = {job.id: job for job in reported.jobs}
    stuck = {one.id: one for one in _typed(without) if _has_a_choice(jobs[one.id]) or has_left_its_type(one.job)}
    if not stuck:
        return None
    free = _free_gpus(reported, _typed(outlooks), placements)
    nodes = Nodes.of(reported.nodes).kinds
    instead = {one.id: _instead(one, jobs[one.id], nodes, free) for one in stuck.values()}
    fewer = {job_id: types for job_id, types in instead.items() if types}
    if not fewer:
        return None
    return replace(reported, jobs=tuple(_accepting(job, fewer.get(job.id, ())) for job in reported.jobs))


def _typed(outlooks: Sequence[Outlook]) -> list[Outlook]:
    """Those that are to run on a GPU type."""
    return [one for one in outlooks if one.gpu_type is not None and one.job.directive is not Directive.CANCEL]


def _has_a_choice(job: Job) -> bool:
    """Whether its owner accepts other types than the one that it names."""
    return len(job.spec.gpu_types) > 1 or job.spec.gpu_type == ANY_GPU


def _instead(outlook: Outlook, job: Job, nodes: Sequence[Node], free: dict[str, int]) -> list[str]:
    """The types that are left for a stuck job; empty when it may as well wait."""
    if has_left_its_type(outlook.job):
        return [outlook.present.gpu_type or ""]  # better there than nowhere
    need = job.spec.worker.minimum * sum(job.spec.worker.resources.gpus.values())
    types = accepted_types(job.spec, nodes)
    return [kind for kind in types if kind != outlook.gpu_type and free.get(kind, 0) >= need]


def _accepting(job: Job, types: Collection[str]) -> Job:
    """The job with these types only."""
    if not types:
        return job
    return replace(job, spec=replace(job.spec.on(next(iter(types))), gpu_types=tuple(types)))


def _free_gpus(reported: Snapshot, outlooks: Sequence[Outlook], placements: Placements) -> dict[str, int]:
    """GPUs by type on which no task was placed."""
    free = dict(reported.capacity.gpus)
    for one in outlooks:
        placed, spec = placements.get(one.id), one.job.spec
        if isinstance(placed, Placed):
            for demand, tasks in ((spec.worker, placed.allocation.workers), (spec.server, placed.allocation.servers)):
                for kind, count in demand.resources.gpus.items():
                    free[kind] = free.get(kind, 0) - count * tasks
    return free
