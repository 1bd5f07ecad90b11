"""Requests to place the tasks of one job, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

from optimus_scheduler.model import Allocation, Resources, Role

TaskSlot = tuple[Role, int]
"""A role and a rank: what a task is within its job, whichever process fills it."""
CurrentNodes = Mapping[str, Mapping[TaskSlot, str]]
"""Job id → the nodes of the tasks that it has and that may stay."""


@lru_cache(maxsize=4096)
def task_slots(allocation: Allocation) -> tuple[TaskSlot, ...]:
    """All roles and ranks of an allocation, servers first."""
    return (
        *((Role.SERVER, rank) for rank in range(allocation.servers)),
        *((Role.WORKER, rank) for rank in range(allocation.workers)),
    )


class Request(NamedTuple):
    """What is to be placed for one job."""

    job_id: str
    worker: Resources
    server: Resources
    allocation: Allocation
    minimum: Allocation
    current: Mapping[TaskSlot, str]
    """Node of each task that the job has and that stays."""
    before: Mapping[TaskSlot, str] = MappingProxyType({})
    """For a job that is placed anew: the present node of each task. A task that fits there again does not move."""


class Placed(NamedTuple):
    """Where the tasks of a job go. `allocation` may be less than was asked for, never below the minimum."""

    allocation: Allocation
    nodes: Mapping[TaskSlot, str]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Not even the minimum fits on the nodes."""

    reason: str


Placements = Mapping[str, Placed | Unplaced]


class MovesForOthers(Protocol):
    """Which jobs may move so that others can start; jobs by id."""

    made: dict[str, str]
    """By each job that moves, the one that starts in its place."""

    def movable(self) -> Sequence[str]:
        """Jobs that may move, in the order in which they are tried."""

    def pay(self, waiting: str, moved: Sequence[str]) -> bool:
        """Whether these moves are worth the start of the job that waits."""
