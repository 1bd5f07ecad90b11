"""What placement is asked for, for each job that was granted something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from optimus_scheduler.forecasting.outlook import Outlook
from optimus_scheduler.placement.requests import Held, Post, Request
from optimus_scheduler.policies.base import Grant, Policy
from optimus_scheduler.types import Allocation, Architecture, Job

_DOUBLED = 2
"""A job that grows so many times will not fit beside the tasks that it has."""


def request_for(outlook: Outlook, allocation: Allocation, held: Mapping[Post, str], policy: Policy) -> Request:
    """What is to be placed so that the job has `allocation`."""
    # Of who has nothing, nothing stays.
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


def _may_stay(outlook: Outlook, allocation: Allocation, held: Mapping[Post, str]) -> bool:
    """Whether a job that changes its size keeps its tasks where they are, and only looks for what is missing.

    Workers of an all-reduce job form a new ring whenever there are others: then they may as well sit closer together.
    So may jobs that are on several nodes, or are going to be: what was added task by task, wherever there was room,
    sends more between nodes than it has to.
    """
    if outlook.job.spec.architecture is Architecture.ALLREDUCE:
        return False
    tasks, before = (size.workers + size.servers for size in (allocation, outlook.present))
    return len(set(held.values())) <= 1 and tasks < _DOUBLED * before


class _Asked(NamedTuple):
    """What was asked for a job, and what for."""

    job: Job
    allocation: Allocation
    held: Mapping[Post, str]
    request: Request


class Requests:
    """What is to be placed for each job. Of a job that has not changed since the round before, the very same value."""

    def __init__(self) -> None:
        self._known: dict[str, _Asked] = {}
        self._policy: Policy | None = None

    def of(self, granted: Sequence[Outlook], grants: Mapping[str, Grant], held: Held, policy: Policy) -> list[Request]:
        """In the order of `granted`."""
        before, self._known = self._known if self._policy is policy else {}, {}
        self._policy = policy
        requests = []
        for outlook in granted:
            job, allocation = outlook.job, grants[outlook.job.id].allocation
            known, stays = before.get(job.id), held[job.id]
            is_same = known is not None and known.job is job and known.held is stays
            if known is None or not is_same or not (known.allocation is allocation or known.allocation == allocation):
                known = _Asked(job, allocation, stays, request_for(outlook, allocation, stays, policy))
            self._known[job.id] = known
            requests.append(known.request)
        return requests
