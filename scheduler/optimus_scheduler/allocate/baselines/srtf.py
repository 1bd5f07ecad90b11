"""SRTF: shortest remaining time first, by the predictions."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import in_turn, largest_fitting
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings


class SrtfPolicy:
    """Jobs in order of the time that they would still need with what they asked for; each gets that or what is left.

    Preemptive: decided anew in every round. Optimal for the mean on one machine, blind to how well jobs scale.

    References: Schrage, "A proof of the optimality of the shortest remaining processing time discipline", 1968.
    """

    name = "srtf"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_least_transfer)

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        return in_turn(inputs, _time_left, lambda one, available: largest_fitting(one, available, one.requested))


def _time_left(outlook: Outlook) -> tuple[float, float, str]:
    return outlook.remaining_seconds(outlook.requested), outlook.job.submitted_at, outlook.id
