"""What the policies see of one job: its forecast together with the fitted models behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from operator import add, attrgetter
from struct import Struct
from typing import Any, NamedTuple

from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import Allocation, Forecast, Job, Reason, Resources

_Asks = tuple[object, object]
_STEADY = {
    "workers": "job.allocation.workers",
    "servers": "job.allocation.servers",
    "least_workers": "job.spec.worker.minimum",
    "least_servers": "job.spec.server.minimum",
    "most_workers": "job.spec.worker.maximum",
    "most_servers": "job.spec.server.maximum",
    "priority": "job.spec.priority",
    "submitted_at": "job.submitted_at",
    "speeds_known": "speeds.is_known",
    "sure_of_speed": "speeds.confidence",
    "learning": "learning",
    "typical_seconds": "typical_seconds",
    "is_told": "is_told",
    "confidence": "forecast.confidence",
    "stop_seconds": "stop_seconds",
    "joining_seconds": "joining_seconds",
    "claimed": "claimed",
}
STEADY_COLUMNS = (*_STEADY, "remaining", "changes_type")
"""Numbers of a job that stay as they are while it tells nothing new; `remaining` are the steps left, NaN: unknown, each
as many as it takes times as long as the speeds say (`CourseToCome.ratio`).
`changes_type`: whether what it has is of another GPU type than it is to run on; so it is with a GPU job without tasks.
"""
_steady_of = attrgetter(*_STEADY.values())
_pack = Struct(f"{len(STEADY_COLUMNS)}d").pack


class Steady:
    """What is derived of an outlook and does not change with time, found out when it is first asked for.

    All outlooks of one job that tell the same but for what time changes have the very same one (`Outlook.later`).
    """

    __slots__ = ("asks", "columns", "frontier", "maximum", "minimum", "request", "requested", "rows", "want", "words")

    def __init__(self) -> None:
        self.minimum: Allocation | None = None
        self.maximum: Allocation | None = None
        self.requested: Allocation | None = None
        self.columns: bytes | None = None
        self.asks: _Asks | None = None
        self.frontier: tuple[object, Any] | None = None
        """What a policy derived, and the cluster's capacity that it did so by."""
        self.rows: tuple[object, bool, float, bytes] | None = None
        """The sizes that a policy compares, packed, after what else they are made of: the frontier, whether the job has
        to keep its size, and how far it may grow at once."""
        self.request: tuple[object, object, object, Any] | None = None
        """What was asked of nodes (`request_for`), after what else that is a function of."""
        self.want: tuple[object, Any] | None = None
        """What the job should have (`reconcile.Want`) where it was placed like that."""
        self.words: tuple[tuple[object, ...], tuple[Allocation, Reason, str]] | None = None
        """What was decided of it, and in which words (`explain.decide`), after all else that these are made of."""


class _Fields(NamedTuple):
    job: Job
    forecast: Forecast
    waited_seconds: float
    """How long the job has been without tasks; 0 while it has some."""
    measured: bool
    """Whether the present size has been measured since it was granted."""
    allocated_seconds: float
    """How long the job has had its present size; 0 while it has none."""
    # What follows stays as it is while the job tells nothing new.
    speeds: Speeds
    stop_seconds: float
    """Predicted stop of the next change of size."""
    learning: bool
    """Whether the speed model is too uncertain to trust far away from what was measured."""
    typical_seconds: float
    """Stands in for the time left at the minimum where the forecast knows nothing of it: what ended jobs like it tell
    of it (`is_told`), or the same for all jobs."""
    is_told: bool
    """Whether ended jobs like it tell its time left, and nothing else does."""
    claimed: bool
    """Whether a quota or deadline gives it a right to its minimum, before anything is compared."""
    joining_seconds: float
    """Predicted time from the start of new tasks until they take part; it trains on at its present size meanwhile."""
    # Asked for many times of each job in a round: found out once.
    id: str
    present: Allocation
    has_tasks: bool
    """Whether the job has tasks."""
    steady: Steady


class Outlook(_Fields):
    """One job in one round. Every number is there: where nothing is known, a stated assumption stands in.

    A tuple, as each round makes one for every job; it is equal to no other.
    """

    __slots__ = ()

    def __new__(
        cls,
        job: Job,
        forecast: Forecast,
        speeds: Speeds,
        stop_seconds: float,
        waited_seconds: float,
        measured: bool,
        learning: bool,
        typical_seconds: float,
        is_told: bool = False,
        allocated_seconds: float = 0.0,
        claimed: bool = False,
        joining_seconds: float = 0.0,
    ) -> Outlook:
        size = job.allocation
        by_time = job, forecast, waited_seconds, measured, allocated_seconds
        rest = speeds, stop_seconds, learning, typical_seconds, is_told, claimed, joining_seconds
        return tuple.__new__(cls, (*by_time, *rest, job.id, size, not size.is_empty, Steady()))

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _replace(self, **changes: Any) -> Outlook:
        return Outlook(**{**dict(zip(_GIVEN, self, strict=False)), **changes})

    def later(
        self, job: Job, forecast: Forecast, measured: bool, waited_seconds: float, allocated_seconds: float
    ) -> Outlook:
        """The same at another time, in a tenth of the time that `_replace` takes.

        `job` and `forecast` differ from before in nothing that `STEADY_COLUMNS` are made of, nor `steady`.
        """
        return tuple.__new__(Outlook, (job, forecast, waited_seconds, measured, allocated_seconds, *self.lasting))

    @property
    def lasting(self) -> tuple[object, ...]:
        """What stays as it is while the job tells nothing new."""
        return self[_BY_TIME:]

    @property
    def gpu_type(self) -> str | None:
        """The one GPU type that workers ask for, None for a CPU job."""
        return self.job.spec.gpu_type

    @property
    def end_is_guessed(self) -> bool:
        """Whether the forecast knows no more of its length than how long it has gone on."""
        return self.forecast.rule is None and self.job.spec.announced_steps is None

    @property
    def minimum(self) -> Allocation:
        steady, found = self.steady, self.steady.minimum
        if found is None:
            found = steady.minimum = self.size(self.job.spec.worker.minimum, self.job.spec.server.minimum)
        return found

    @property
    def maximum(self) -> Allocation:
        steady, found = self.steady, self.steady.maximum
        if found is None:
            found = steady.maximum = self.size(self.job.spec.worker.maximum, self.job.spec.server.maximum)
        return found

    @property
    def requested(self) -> Allocation:
        """What a policy gives that does not choose sizes: what the owner asked for, within minimum and maximum."""
        found = self.steady.requested
        if found is None:
            found = self.steady.requested = self.size(*self.job.spec.asked_size)
        return found

    @property
    def steady_columns(self) -> bytes:
        """`STEADY_COLUMNS` as 64-bit floats, one after the other: a round joins those of thousands of jobs."""
        found = self.steady.columns
        if found is None:
            left, changes_type = self.forecast.remaining_steps, self.present.gpu_type != self.gpu_type
            remaining = math.nan if left is None else left.mean * self.forecast.course.ratio
            found = self.steady.columns = _pack(*_steady_of(self), remaining, changes_type)
        return found

    @property
    def asks(self) -> _Asks:
        """What a worker and a server need, in a form that is equal where that is equal, mostly the very same."""
        spec, found = self.job.spec, self.steady.asks
        if found is None:
            found = self.steady.asks = _one_of_equals((as_key(spec.worker.resources), as_key(spec.server.resources)))
        return found

    def size(self, workers: int, servers: int) -> Allocation:
        return allocation_of(workers, servers, self.gpu_type)

    def demand(self, allocation: Allocation) -> Resources:
        """What that many tasks need together."""
        return self.job.spec.demand(allocation.workers, allocation.servers)

    def speedup(self, allocation: Allocation, over: Allocation) -> float:
        """How many times as fast `allocation` is predicted to be."""
        return self.speeds.at(allocation) / self.speeds.at(over)

    def remaining_seconds(self, allocation: Allocation) -> float:
        """Predicted time left with `allocation`."""
        remaining = self.forecast.remaining_steps
        if remaining is None or self.speeds.source is None:
            return self.typical_seconds
        return remaining.mean * self.forecast.course.ratio / self.speeds.at(allocation)


_GIVEN = _Fields._fields[: _Fields._fields.index("id")]
"""What an outlook is made of ..."""
_BY_TIME = _Fields._fields.index("speeds")
"""... and how many of these time changes: they come first."""
_outlook: Callable[[Iterable[object]], Outlook] = partial(tuple.__new__, Outlook)


def all_later(by_time: Iterable[tuple[object, ...]], lasting: Iterable[tuple[object, ...]]) -> list[Outlook]:
    """`Outlook.later` of many jobs in a third of its time: what time changes of each, in the order of the fields, and
    what is `lasting` of each."""
    return list(map(_outlook, map(add, by_time, lasting)))


def as_key(resources: Resources) -> object:
    """A value that is equal where these amounts are, and can be looked up by."""
    gpus = resources.gpus
    return resources.cpu, resources.memory_bytes, tuple(gpus.items()) if gpus else ()


@lru_cache(maxsize=2**12)
def _one_of_equals(asks: _Asks) -> _Asks:
    """Many jobs ask for the same."""
    return asks


@lru_cache(maxsize=2**14)
def allocation_of(workers: int, servers: int, gpu_type: str | None) -> Allocation:
    """The same few sizes are spoken of again and again."""
    return Allocation(workers, servers, gpu_type)
