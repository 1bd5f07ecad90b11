"""FIFO: first come, first served, with a size that never changes."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import one_more
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, JobSpec, Reason, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings


class FifoPolicy:
    """Each job starts with as much as is free when its turn comes, up to its maximum, and keeps it to the end.

    A job whose owner asked for one size waits for that.
    No job passes a waiting one. Servers and workers grow in step, as far as their limits allow.
    """

    name = "fifo"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_least_transfer)

    def only_size(self, spec: JobSpec, /) -> tuple[int, int] | None:
        return None if spec.requested_workers is None else spec.asked_size

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        grants: dict[str, Grant] = {}
        available, blocked = inputs.capacity, False
        for outlook in sorted(inputs.competing, key=_arrival):
            size = None if blocked and not outlook.has_tasks else _largest(outlook, available)
            blocked |= size is None and outlook.demand(outlook.minimum).fits_in(inputs.capacity)
            if size is None:
                grants[outlook.id] = Grant(NOTHING, Reason.WAITING_FOR_RESOURCES)
                continue
            reason = Reason.UNCHANGED if size == outlook.present else Reason.GRANTED_MORE
            grants[outlook.id] = Grant(size, reason)
            available = available - outlook.demand(size)
        return grants


def _arrival(outlook: Outlook) -> tuple[bool, float, str]:
    """Running jobs first: what they have is theirs."""
    return (not outlook.has_tasks, outlook.job.submitted_at, outlook.id)


def _largest(outlook: Outlook, available: Resources) -> Allocation | None:
    """What the job keeps or starts with; None when its minimum does not fit."""
    if outlook.has_tasks and outlook.demand(outlook.present).fits_in(available):
        return outlook.present
    asked_for_a_size = outlook.job.spec.requested_workers is not None
    size = outlook.requested if asked_for_a_size else outlook.minimum
    if not outlook.demand(size).fits_in(available):
        return None
    if asked_for_a_size:
        return size
    while (larger := one_more(outlook, size)) is not None and outlook.demand(larger).fits_in(available):
        size = larger
    return size
