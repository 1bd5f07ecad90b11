"""What placement is asked for, for each job that was granted something, and what each has that may stay."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_scheduler.allocate.policy import Policy
from optimus_scheduler.forecast.gpu_types import has_left_its_type
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Architecture, Job, Role, Snapshot, TaskKey, TaskPhase
from optimus_scheduler.place.requests import CurrentNodes, Request, TaskSlot

_DOUBLED = 2
"""A job that grows so many times will not fit beside the tasks that it has."""


def request_for(outlook: Outlook, allocation: Allocation, held: Mapping[TaskSlot, str], policy: Policy) -> Request:
    """What is to be placed so that the job has `allocation`."""
    # Jobs without tasks keep nothing.
    stays = held and (allocation == outlook.present or (policy.keeps_places and _may_stay(outlook, allocation, held)))
    return Request(
        job_id=outlook.id,
        worker=outlook.job.spec.worker.resources,
        server=outlook.job.spec.server.resources,
        allocation=allocation,
        minimum=outlook.minimum,
        held=held if stays else {},
        before={} if stays else held,
    )


def _may_stay(outlook: Outlook, allocation: Allocation, held: Mapping[TaskSlot, str]) -> bool:
    """Whether a job that changes its size keeps its tasks where they are, and only looks for what is missing.

    Workers of an all-reduce job form a new ring whenever there are others: then they may as well sit closer together.
    So may jobs that are on several nodes, or are going to be: what was added task by task, wherever there was room,
    sends more between nodes than it has to.
    """
    if outlook.job.spec.architecture is Architecture.ALLREDUCE:
        return False
    tasks, before = (size.workers + size.servers for size in (allocation, outlook.present))
    return len(set(held.values())) <= 1 and tasks < _DOUBLED * before


def current_slots(snapshot: Snapshot) -> CurrentNodes:
    """Where each job has tasks that may stay: on nodes that exist, and on cordoned ones only while they live.

    By job id, an entry for every job. Workers of a job that changes its GPU type do not stay.
    """
    is_open = {node.name: node.schedulable for node in snapshot.nodes}
    live: frozenset[TaskKey] = frozenset()
    if not all(is_open.values()):
        live = frozenset(task.key for task in snapshot.tasks if task.phase is not TaskPhase.EXITED)
    return {job.id: _held(job, is_open, live) for job in snapshot.jobs}


def _held(job: Job, is_open: Mapping[str, bool], live: frozenset[TaskKey]) -> dict[TaskSlot, str]:
    leaves = has_left_its_type(job)
    return {
        (task.key.role, task.key.rank): task.node
        for task in job.wanted_tasks
        if (is_open.get(task.node, False) or (task.node in is_open and task.key in live))
        and not (leaves and task.key.role is Role.WORKER)
    }
