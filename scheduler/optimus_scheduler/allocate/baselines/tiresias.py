"""Tiresias: least attained service first, without predictions."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import grant
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import JobSpec, Resources
from optimus_scheduler.place.network_cost import spread_emptiest
from optimus_scheduler.settings import Settings

QUEUE_UNIT_SECONDS = 16 * 3600.0
"""Unit-seconds of service after which a job falls into the second queue: 16 GPU-hours, as published."""
_ROUNDING = 1e-6
"""Service is a sum of shares: 57600 may come out as 57599.999."""


class TiresiasPolicy:
    """Discretised two-dimensional least attained service (2D-LAS) with two queues.

    A job runs with all that it asked for or not at all, and may be preempted. Service is time by what was held, in
    units of the cluster's scarcest resource (GPUs where there are any). In each queue the order is that of entry.

    References: Gu et al., "Tiresias", NSDI 2019, section 4.
    """

    name = "tiresias"
    keeps_places = True
    places_in_order = True
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_emptiest)

    def only_size(self, spec: JobSpec, /) -> tuple[int, int] | None:
        return spec.asked_size

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        available = inputs.capacity
        grants: dict[str, Grant] = {}
        for outlook in sorted(inputs.competing, key=lambda outlook: _place_in_line(outlook, inputs.capacity)):
            demand = outlook.demand(outlook.requested)
            fits = demand.fits_in(available)
            grants[outlook.id] = grant(outlook, outlook.requested if fits else None)
            available = available - demand if fits else available
        return grants


def _place_in_line(outlook: Outlook, capacity: Resources) -> tuple[bool, float, str]:
    attained = outlook.job.attained_share_seconds * _units(capacity)
    return attained >= QUEUE_UNIT_SECONDS - _ROUNDING, outlook.job.submitted_at, outlook.id


def _units(capacity: Resources) -> float:
    """GPUs of the cluster, or cores where there are none."""
    return float(sum(capacity.gpus.values())) or capacity.cpu
