"""The paper's policy as published, for comparison: Eq. 9 and the placement of section 4.2."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, Reason, Resources
from optimus_scheduler.place.network_cost import spread_evenly
from optimus_scheduler.settings import Settings


class OptimusPaperPolicy:
    """Minima in order of arrival, then one worker or one server at a time by Eq. 9, until a resource is used up.

    Faithful to a fault: gains in seconds per amount of the dominant resource, no cost of changing, sizes computed
    from scratch in every round. A job whose speed or end cannot be predicted yet keeps its minimum.

    References: Peng et al., "Optimus", EuroSys 2018, section 4.1.
    """

    name = "optimus-paper"
    keeps_places = False
    places_in_order = False
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_evenly)

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        outlooks, capacity = inputs.competing, inputs.capacity
        sizes, gains, available = _minima(outlooks, capacity)
        heap = [entry for outlook in outlooks if outlook.id in sizes for entry in _entry(outlook, sizes, capacity)]
        heapq.heapify(heap)
        jobs = {outlook.id: outlook for outlook in outlooks}
        while heap:
            negative_gain, _, job_id, size, demand = heapq.heappop(heap)
            if not demand.fits_in(available):
                break  # a resource is used up: the paper stops, even if a smaller task would fit
            sizes[job_id], gains[job_id], available = size, -negative_gain, available - demand
            for entry in _entry(jobs[job_id], sizes, capacity):
                heapq.heappush(heap, entry)
        return {
            outlook.id: _grant(outlook, sizes.get(outlook.id), gains.get(outlook.id), capacity) for outlook in outlooks
        }


_Entry = tuple[float, float, str, Allocation, Resources]
"""Negated gain, arrival and id (of equal gains the first to arrive), the size that it gains and what that adds."""


def _minima(
    outlooks: Sequence[Outlook], capacity: Resources
) -> tuple[dict[str, Allocation], dict[str, float], Resources]:
    sizes: dict[str, Allocation] = {}
    available = capacity
    for outlook in sorted(outlooks, key=lambda outlook: (outlook.job.submitted_at, outlook.id)):
        demand = outlook.demand(outlook.minimum)
        if demand.fits_in(available):
            sizes[outlook.id] = outlook.minimum
            available = available - demand
    return sizes, {}, available


def marginal_gain(outlook: Outlook, size: Allocation, to: Allocation, capacity: Resources) -> float:
    """Eq. 9 for one task more: (Q/f(p,w) - Q/f(to)) / amount of the added task's dominant resource."""
    remaining = outlook.forecast.remaining_steps
    if remaining is None or outlook.speeds.model.n_points == 0:
        return 0.0
    saved = remaining.mean / outlook.speeds.at(size) - remaining.mean / outlook.speeds.at(to)
    added = outlook.demand(to) - outlook.demand(size)
    return saved / max(_dominant_amount(added, capacity), 1e-12)


def _entry(outlook: Outlook, sizes: Mapping[str, Allocation], capacity: Resources) -> list[_Entry]:
    """The better of one server and one worker more, as a heap entry; empty when neither gains."""
    best = _best(outlook, sizes[outlook.id], capacity)
    if best is None or best[0] <= 0:
        return []
    gain, to = best
    return [(-gain, outlook.job.submitted_at, outlook.id, to, outlook.demand(to) - outlook.demand(sizes[outlook.id]))]


def _best(outlook: Outlook, size: Allocation, capacity: Resources) -> tuple[float, Allocation] | None:
    steps = (outlook.size(size.workers, size.servers + 1), outlook.size(size.workers + 1, size.servers))
    most = outlook.maximum
    allowed = [to for to in steps if to.workers <= most.workers and to.servers <= most.servers]
    gains = [(marginal_gain(outlook, size, to, capacity), to) for to in allowed]
    return max(gains, key=lambda entry: entry[0], default=None)


def _dominant_amount(demand: Resources, capacity: Resources) -> float:
    """The absolute amount of the resource of which `demand` takes the largest share of `capacity`."""
    amounts = [(demand.cpu, capacity.cpu), (float(demand.memory_bytes), float(capacity.memory_bytes))]
    amounts += [
        (float(count), float(capacity.gpus.get(gpu_type, 0))) for gpu_type, count in sorted(demand.gpus.items())
    ]
    used = [(amount / total, amount) for amount, total in amounts if amount > 0 and total > 0]
    return max(used, key=lambda entry: entry[0], default=(0.0, 0.0))[1]


def _grant(outlook: Outlook, size: Allocation | None, gain: float | None, capacity: Resources) -> Grant:
    if size is None:
        return Grant(NOTHING, Reason.WAITING_FOR_RESOURCES)
    best = _best(outlook, size, capacity)
    return Grant(size, _reason(outlook, size, best), gain=gain, next_gain=best[0] if best else None)


def _reason(outlook: Outlook, size: Allocation, best: tuple[float, Allocation] | None) -> Reason:
    before, after = outlook.present.workers + outlook.present.servers, size.workers + size.servers
    if after > before:
        return Reason.GRANTED_MORE
    if after < before:
        return Reason.BETTER_USED_ELSEWHERE
    if best is None:
        return Reason.AT_MAXIMUM
    if outlook.speeds.model.n_points == 0:
        return Reason.LEARNING_SPEED
    return Reason.NO_FURTHER_GAIN if best[0] <= 0 else Reason.UNCHANGED
