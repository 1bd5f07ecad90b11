"""DRF: dominant resource fairness."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import progressive_filling
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation
from optimus_scheduler.place.network_cost import spread_balanced
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
    spread = staticmethod(spread_balanced)

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""

        def level_of(outlook: Outlook, size: Allocation, _larger: Allocation) -> float:
            return outlook.demand(size).dominant_share(inputs.capacity) / outlook.job.spec.priority

        return progressive_filling(inputs, level_of)
