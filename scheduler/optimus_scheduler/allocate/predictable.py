"""Predictable: first come, first served within classes of size, so that later jobs hardly delay earlier ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import grant, largest_fitting, one_more
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings

_LEAST_WORK = 1e-9
_LEAST_EFFICIENCY = 0.6
"""No job gets so many tasks that each is worth less than this part of one at its minimum: others wait for them."""


class PredictablePolicy:
    """Jobs in order of their class of size, the small ones first, and of their arrival within it.

    A promise of the end made at submission is a soft constraint: no later job of the same class or a larger one
    takes anything away from a job, whatever that would save on average. Only jobs that are smaller by whole classes
    do, and they delay it little, as they are small. Each job gets as much as it can use of what is left.

    References: Faisal et al., "When will my ML job finish? Toward providing completion time estimates through
    predictability-centric scheduling", OSDI 2024 (its classes share the cluster by weights; ours have strict priority).
    """

    name = "predictable"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    spread = staticmethod(spread_least_transfer)

    def allocate(self, inputs: AllocationInput, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        available = inputs.capacity
        grants: dict[str, Grant] = {}
        for outlook in sorted(inputs.competing, key=lambda one: _place_in_line(one, inputs.capacity, settings)):
            size = largest_fitting(outlook, available, _efficient(outlook))
            grants[outlook.id] = grant(outlook, size)
            available = available - outlook.demand(size) if size else available
        return grants


def _efficient(outlook: Outlook) -> Allocation:
    """The largest size that makes good use of its tasks, grown in step from the minimum."""
    size = outlook.minimum
    least = outlook.speeds.at(size) / (size.workers + size.servers) * _LEAST_EFFICIENCY
    while (larger := one_more(outlook, size)) is not None:
        if outlook.speeds.at(larger) < least * (larger.workers + larger.servers):
            break
        size = larger
    return size


def _place_in_line(outlook: Outlook, capacity: Resources, settings: Settings) -> tuple[int, float, str]:
    return size_class(outlook, capacity, settings.class_width), outlook.job.submitted_at, outlook.id


def size_class(outlook: Outlook, capacity: Resources, width: float) -> int:
    """The class of a job by its whole work in share-seconds at its minimum; each is `width` times as large as the last.

    The work that is done counts with the rest: a job stays in its class to its end.
    """
    remaining = outlook.forecast.remaining_steps
    least = outlook.minimum
    if remaining is None or not outlook.speeds.is_known:
        work = outlook.job.attained_share_seconds
    else:
        seconds = (outlook.job.step + remaining.mean) / outlook.speeds.at(least)
        work = seconds * min(outlook.demand(least).dominant_share(capacity), 1.0)
    return math.floor(math.log(max(work, _LEAST_WORK)) / math.log(width))
