"""The interface of a policy: its input, its grants and its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from optimus_scheduler.allocate.staying import NONE_CLOSED, OnClosed
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, JobSpec, Reason, Resources
from optimus_scheduler.place.network_cost import Spread
from optimus_scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class AllocationInput:
    """The jobs and the capacity that a policy allocates in one round."""

    competing: tuple[Outlook, ...]
    """Jobs that may get tasks, in any order; jobs that end or could never run are not among them."""
    capacity: Resources
    """What the competing jobs may use together."""
    leaving: Resources = field(default_factory=Resources)
    """What jobs that are being finished will free in a moment; not part of `capacity`."""
    now: float = 0.0
    """POSIX seconds, for policies that go by deadlines."""
    on_closed: OnClosed = NONE_CLOSED
    """What jobs hold on closed nodes; part of `capacity`, or of `leaving`."""


OTHERS_GIVE = "Other jobs would have to give up the room for that."
"""The note of a grant with `NOT_WORTH_RESCALING`: not only the stop of its own change is in the way."""


class Grant(NamedTuple):
    """What a policy wants one job to have."""

    allocation: Allocation
    reason: Reason
    ideal: Allocation | None = None
    """With `NOT_WORTH_RESCALING`: what it would have without the cost of changing."""
    gain: float | None = None
    """Marginal gain of the last task granted beyond the minimum, in the policy's unit."""
    next_gain: float | None = None
    """Marginal gain of one more task; None: none is worth its share by itself."""
    note: str | None = None
    """A sentence for the job's owner about its deadline, budget or quota, beside the reason's own."""
    is_claimed: bool = False
    """It has what its deadline or its project's guarantee claims, where the policy by itself would give it less."""
    grown: tuple[str, ...] = ()
    """Of a job that waits: those that have more than their minima, beside which it would have room; where it waits for
    its project's quota or for a limit of workers, in that. Else only of a policy by which they make better use of
    it."""
    goes_first: bool = False
    """Of a job that waits: it has waited so long that no other job starts before it, but where more than the policy
    decides."""
    lacks_room: bool = False
    """Of a job that waits for a limit of workers: without the limit it would wait for room."""
    again_at: float | None = None
    """Of a job whose deadline lets it wait for others: when these have to be paused for it, POSIX seconds. A round is
    due then."""


class Policy(Protocol):
    """Decides sizes. Deterministic, and independent of the order of the competing jobs."""

    @property
    def name(self) -> str: ...

    @property
    def spread(self) -> Spread:
        """How the tasks of one job are spread over nodes."""

    @property
    def keeps_places(self) -> bool:
        """Whether a job that changes its size keeps the tasks that it has where they are."""

    @property
    def places_in_order(self) -> bool:
        """Whether jobs choose their nodes in the order of the grants; otherwise those with least to place first."""

    @property
    def scales_batches(self) -> bool:
        """Whether jobs with an elastic batch get the batch that suits their size, or train with their fixed one."""

    @property
    def gathers(self) -> bool:
        """Whether scattered jobs move onto fewer nodes while they have the same size."""

    def allocate(self, inputs: AllocationInput, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""


@runtime_checkable
class DeadlinePolicy(Policy, Protocol):
    """A policy that goes by deadlines itself: nothing is claimed for them beside it."""

    @property
    def reads_deadlines(self) -> bool:
        """Always true: it tells such a policy from others."""


@runtime_checkable
class PatientPolicy(Policy, Protocol):
    """A policy under which other jobs pass a waiting one only for a while."""

    def seconds_to_turn(self, outlook: Outlook, settings: Settings, /) -> float:
        """Until no other job starts before this one; negative where it is so already."""


@runtime_checkable
class RigidPolicy(Policy, Protocol):
    """A policy that runs a job at the size that its owner asked for, or not at all."""

    def only_size(self, spec: JobSpec, /) -> tuple[int, int] | None:
        """Workers and servers; None: this job may have other sizes, too."""


class Planned(NamedTuple):
    """When a job is to have which size. Seconds from now."""

    start: float
    """0 for a job that has its tasks, or gets them now."""
    size: Allocation
    end: float


@runtime_checkable
class PlanningPolicy(Policy, Protocol):
    """A policy that decides about the whole life of every job at once, and keeps to it."""

    def plan(self, inputs: AllocationInput, settings: Settings, /) -> Mapping[str, Planned]:
        """Every competing job from its start to its end; without those that have no room even alone."""
