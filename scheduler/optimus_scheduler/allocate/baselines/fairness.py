"""Policies that share the cluster fairly: by dominant share (DRF), by normalised speed (max-min, Gavel)."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import one_more, progressive_filling
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation
from optimus_scheduler.place.network_cost import spread_balanced, spread_evenly
from optimus_scheduler.settings import Settings


class DrfPolicy:
    """Progressive filling: the job with the smallest dominant share is next, until nothing more fits.

    Each job starts with its minimum and grows by workers and servers in step. Anew in every round, whatever a change
    costs: that is what "fairness scheduler" means in the paper's comparison.

    References: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, algorithm 1.
    """

    name = "drf"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_balanced)

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""

        def level_of(outlook: Outlook, size: Allocation, _larger: Allocation) -> float:
            return outlook.demand(size).dominant_share(inputs.capacity) / outlook.job.spec.priority

        return progressive_filling(inputs, level_of)


class MaxMinPolicy:
    """The job with the smallest normalised speed is next: f(size) by f at its equal part of the cluster.

    A job that grows slowly with more tasks therefore gets more of them than under `drf`. A step that would make its
    job no faster is not taken.

    References: Narayanan et al., "Gavel", OSDI 2020, section 4.1 (max-min fairness of normalised throughput).
    """

    name = "max-min"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_evenly)

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        fair = {outlook.id: outlook.speeds.at(_equal_part(outlook, inputs)) for outlook in inputs.competing}

        def level_of(outlook: Outlook, size: Allocation, larger: Allocation) -> float | None:
            if outlook.speedup(larger, size) < 1.0:
                return None
            return outlook.speeds.at(size) / fair[outlook.id] / outlook.job.spec.priority

        return progressive_filling(inputs, level_of)


def _equal_part(outlook: Outlook, inputs: AllocationInput) -> Allocation:
    """The size that 1/n of the cluster holds, workers and servers in step; at least the minimum."""
    part = 1.0 / len(inputs.competing)
    size = outlook.minimum
    while (larger := one_more(outlook, size)) is not None:
        if outlook.demand(larger).dominant_share(inputs.capacity) > part:
            break
        size = larger
    return size
