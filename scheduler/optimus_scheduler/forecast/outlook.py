"""What the policies see of one job: its forecast together with the fitted models behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, TypeVar

from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import Allocation, Forecast, Job, Resources, TaskDemand

_Value = TypeVar("_Value")


class _derived(Generic[_Value]):  # noqa: N801 - a decorator, as `cached_property` is
    """`functools.cached_property` without its lock, which took as long as all that is derived of an outlook."""

    def __init__(self, find: Callable[[Any], _Value]) -> None:
        self._find, self.__doc__ = find, find.__doc__

    def __get__(self, outlook: Any, _: type) -> _Value:
        found = outlook.__dict__[self._find.__name__] = self._find(outlook)
        return found


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
    "confidence": "forecast.confidence",
    "stop_seconds": "stop_seconds",
    "joining_seconds": "joining_seconds",
    "claimed": "claimed",
}
STEADY_COLUMNS = (*_STEADY, "remaining")
"""Numbers of a job that stay as they are while it tells nothing new; `remaining` are the steps left, NaN: unknown."""
_steady_of = attrgetter(*_STEADY.values())
_pack = Struct(f"{len(STEADY_COLUMNS)}d").pack


@dataclass(frozen=True, eq=False, init=False)
class Outlook:
    """One job in one round. Every number is there: where nothing is known, a stated assumption stands in."""

    job: Job
    forecast: Forecast
    speeds: Speeds
    stop_seconds: float
    """Predicted stop of the next change of size."""
    waited_seconds: float
    """How long the job has been without tasks; 0 while it has some."""
    measured: bool
    """Whether the present size has been measured since it was granted."""
    learning: bool
    """Whether the speed model is too uncertain to trust far away from what was measured."""
    typical_seconds: float
    """Stands in for the time left when nothing is known."""
    allocated_seconds: float = 0.0
    """How long the job has had its present size; 0 while it has none."""

    claimed: bool = False
    """Whether a quota or deadline gives it a right to its minimum, before anything is compared."""

    joining_seconds: float = 0.0
    """Predicted time from the start of new tasks until they take part; it trains on at its present size meanwhile."""

    # Asked for many times of each job in a round: found out once.
    id: str = field(init=False)
    present: Allocation = field(init=False)
    has_tasks: bool = field(init=False)
    """Whether the job has tasks."""
    steady: object = field(init=False)
    """The very same of all outlooks that tell the same but for what time changes (`later`)."""

    def __init__(
        self,
        job: Job,
        forecast: Forecast,
        speeds: Speeds,
        stop_seconds: float,
        waited_seconds: float,
        measured: bool,
        learning: bool,
        typical_seconds: float,
        allocated_seconds: float = 0.0,
        claimed: bool = False,
        joining_seconds: float = 0.0,
    ) -> None:
        # All at once: that of a frozen dataclass sets one after the other, in three times as long.
        self.__dict__.update(
            job=job,
            forecast=forecast,
            speeds=speeds,
            stop_seconds=stop_seconds,
            waited_seconds=waited_seconds,
            measured=measured,
            learning=learning,
            typical_seconds=typical_seconds,
            allocated_seconds=allocated_seconds,
            claimed=claimed,
            joining_seconds=joining_seconds,
            id=job.id,
            present=job.allocation,
            has_tasks=not job.allocation.is_empty,
            steady=object(),
        )

    def later(self, changed: dict[str, Any]) -> Outlook:
        """The same with some fields changed, none of which `STEADY_COLUMNS` are made of.

        It takes a quarter of the time of `replace`, and what was found out from those is kept.
        """
        fields = self.__dict__.copy()  # `|` takes twice as long
        fields.update(changed)
        found = object.__new__(Outlook)
        object.__setattr__(found, "__dict__", fields)
        return found

    @_derived
    def gpu_type(self) -> str | None:
        """The one GPU type that workers ask for, None for a CPU job."""
        return self.job.spec.gpu_type

    @property
    def end_is_guessed(self) -> bool:
        """Whether the forecast knows no more of its length than how long it has gone on."""
        return self.forecast.rule is None and self.job.spec.announced_steps is None

    @_derived
    def minimum(self) -> Allocation:
        return self.size(self.job.spec.worker.minimum, self.job.spec.server.minimum)

    @_derived
    def maximum(self) -> Allocation:
        return self.size(self.job.spec.worker.maximum, self.job.spec.server.maximum)

    @_derived
    def requested(self) -> Allocation:
        """What a policy gives that does not choose sizes: what the owner asked for, within minimum and maximum."""
        spec = self.job.spec
        return self.size(_within(spec.requested_workers, spec.worker), _within(spec.requested_servers, spec.server))

    @_derived
    def steady_columns(self) -> bytes:
        """`STEADY_COLUMNS` as 64-bit floats, one after the other: a round joins those of thousands of jobs."""
        left = self.forecast.remaining_steps
        return _pack(*_steady_of(self), math.nan if left is None else left.mean)

    @_derived
    def asks(self) -> tuple[object, object]:
        """What a worker and a server need, in a form that is equal where that is equal, and can be looked up by."""
        spec = self.job.spec
        return _as_key(spec.worker.resources), _as_key(spec.server.resources)

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
        return remaining.mean / self.speeds.at(allocation)


def _as_key(resources: Resources) -> object:
    gpus = resources.gpus
    return resources.cpu, resources.memory_bytes, tuple(gpus.items()) if gpus else ()


@lru_cache(maxsize=2**14)
def allocation_of(workers: int, servers: int, gpu_type: str | None) -> Allocation:
    """The same few sizes are spoken of again and again."""
    return Allocation(workers, servers, gpu_type)


def _within(count: int | None, demand: TaskDemand) -> int:
    return demand.maximum if count is None else min(max(count, demand.minimum), demand.maximum)
