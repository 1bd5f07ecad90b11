"""Predictable: each job has a place in a plan of the whole queue, which no later job changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.allocate.baselines.fixed_ratio import by_arrival, grant, largest_fitting, one_more
from optimus_scheduler.allocate.policy import AllocationInput, Grant, Planned
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import TOLERANCE, Allocation, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings

FloatArray = NDArray[np.float64]

_LEAST_SECONDS, _LONGEST_SECONDS = 1e-6, 1e12
"""What a job has it holds for now, though it should be done; one that makes no progress takes the longest."""


class PredictablePolicy:
    """Plans all jobs to their ends, in the order of arrival, and keeps to the plan.

    The end that was predicted at submission is a soft constraint: no later job delays it. A job that has started keeps
    its size to its end. A waiting one takes the start and the size for which its end comes first, of the sizes that
    make good use of their tasks (`Settings.least_efficiency`): others wait for them. A small job may start in a gap
    before its turn, where that moves nobody else. The plan is a function of the jobs that are there, so it need not be
    stored: as long as the jobs take as long as predicted, each round finds the same one. What a job may choose from
    only shrinks with time, and what it chose stays.

    It is conservative backfilling (Mu'alem and Feitelson, TPDS 2001) of jobs whose size is chosen when they start.
    Reference for its purpose: Faisal et al., "When will my ML job finish? Toward providing completion time estimates
    through predictability-centric scheduling", OSDI 2024.
    """

    name = "predictable"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_least_transfer)

    def allocate(self, inputs: AllocationInput, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        planned = self.plan(inputs, settings)
        return {
            one.id: grant(one, planned[one.id].size if one.id in planned and planned[one.id].start <= 0.0 else None)
            for one in inputs.competing
        }

    def plan(self, inputs: AllocationInput, settings: Settings, /) -> dict[str, Planned]:
        """Every competing job from its start to its end; without those that have no room even alone."""
        plan: dict[str, Planned] = {}
        free = _FreeOverTime(inputs.capacity)
        for outlook in sorted(inputs.competing, key=_place_in_line):
            found = _kept(outlook, free) if outlook.has_tasks else _first_end(outlook, free, settings)
            if found is not None:
                plan[outlook.id] = found
                free.take(found, outlook)
        return plan


def _place_in_line(outlook: Outlook) -> tuple[bool, float, str]:
    """Running jobs first: what they have is theirs."""
    return not outlook.has_tasks, *by_arrival(outlook)


def _kept(outlook: Outlook, free: _FreeOverTime) -> Planned | None:
    """A running job keeps its size, or as much of it as a cluster that has lost nodes still holds."""
    size = largest_fitting(outlook, free.now, outlook.present)
    if size is None:
        return None
    starting = max(outlook.stop_seconds - outlook.allocated_seconds, 0.0)
    return Planned(0.0, size, starting + _seconds(outlook, size))


def _first_end(outlook: Outlook, free: _FreeOverTime, settings: Settings) -> Planned | None:
    """The start and the size of a waiting job; None if it has no room even alone."""
    first: Planned | None = None
    for size in _sizes(outlook, settings.least_efficiency):
        seconds = outlook.stop_seconds + _seconds(outlook, size)
        start = free.earliest(outlook.demand(size), seconds)
        if start is None:
            break
        if first is None or start + seconds < first.end:
            first = Planned(start, size, start + seconds)
    return first


def _sizes(outlook: Outlook, least_efficiency: float) -> Iterator[Allocation]:
    """From the minimum on, workers and servers in step, as long as the tasks are worth it."""
    size = outlook.minimum
    least = outlook.speeds.at(size) / (size.workers + size.servers) * least_efficiency
    yield size
    while (larger := one_more(outlook, size)) is not None:
        if outlook.speeds.at(larger) < least * (larger.workers + larger.servers):
            return
        size = larger
        yield size


def _seconds(outlook: Outlook, size: Allocation) -> float:
    """Time left with that size. Of a job of unknown length the typical one counts, at the minimum."""
    if outlook.forecast.remaining_steps is None or outlook.speeds.source is None:
        return outlook.typical_seconds / outlook.speedup(size, outlook.minimum)
    return min(max(outlook.remaining_seconds(size), _LEAST_SECONDS), _LONGEST_SECONDS)


class _FreeOverTime:
    """What is free from now on, in segments of constant amounts; the last one lasts for ever."""

    def __init__(self, capacity: Resources) -> None:
        self._gpu_types = sorted(capacity.gpus)
        self.now = capacity
        """What is free at this moment."""
        self._begins = np.zeros(1)  # (segments,) seconds from now
        self._free = self._amounts(capacity)[np.newaxis]  # (segments, resources)

    def _amounts(self, resources: Resources) -> FloatArray:
        gpus = (resources.gpus.get(gpu_type, 0) for gpu_type in self._gpu_types)
        return np.array([resources.cpu, resources.memory_bytes, *gpus], dtype=np.float64)

    def earliest(self, demand: Resources, seconds: float) -> float | None:
        """The first start from which the demand fits for so long; None if there is none."""
        if any(gpu_type not in self._gpu_types for gpu_type, count in demand.gpus.items() if count > 0):
            return None
        fits: NDArray[np.bool_] = np.all(self._free >= self._amounts(demand) - TOLERANCE, axis=1)
        if not fits[-1]:
            return None
        # Where each segment's stretch of fitting ones ends: the begin of the next segment that does not fit.
        stops = np.where(fits, np.inf, self._begins)
        stretch_ends = np.minimum.accumulate(stops[::-1])[::-1]
        return float(self._begins[np.argmax(fits & (stretch_ends - self._begins >= seconds))])

    def take(self, planned: Planned, outlook: Outlook) -> None:
        """The job has its size from its start to its end."""
        demand = outlook.demand(planned.size)
        first, last = self._cut(planned.start), self._cut(planned.end)
        self._free[first:last] -= self._amounts(demand)
        if planned.start <= 0.0:
            self.now = self.now - demand

    def _cut(self, instant: float) -> int:
        """The number of the segment that begins there; made, if need be."""
        number = int(np.searchsorted(self._begins, instant))
        if number == len(self._begins) or self._begins[number] != instant:
            self._begins = np.insert(self._begins, number, instant)
            self._free = np.insert(self._free, number, self._free[number - 1], axis=0)
        return number
