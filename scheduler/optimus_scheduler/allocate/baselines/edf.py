"""EDF: the earliest deadline first, each as large as it can be."""

from __future__ import annotations

import math
from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import in_turn, largest_fitting
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings


class EdfPolicy:
    """Jobs in the order of their deadlines; each gets its maximum, or the largest power of two of workers that is left.

    Preemptive, and without admission: a job that can be in time no more holds up those after it. Jobs without a
    deadline come last, in the order of arrival.

    References: the baseline of Gu et al., "ElasticFlow", ASPLOS 2023, section 6, as in its artifact.
    """

    name = "edf"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    gathers = False
    reads_deadlines = True
    spread = staticmethod(spread_least_transfer)

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        return in_turn(inputs, by_deadline, _size)


def by_deadline(outlook: Outlook) -> tuple[float, float, str]:
    """Sorts jobs by deadline, those without one last."""
    deadline = outlook.job.spec.deadline_at
    return math.inf if deadline is None else deadline, outlook.job.submitted_at, outlook.id


def _size(outlook: Outlook, available: Resources) -> Allocation | None:
    size = largest_fitting(outlook, available, outlook.maximum)
    if size is None or size == outlook.maximum:
        return size
    workers = max(1 << (size.workers.bit_length() - 1), outlook.minimum.workers)
    return outlook.size(workers, min(size.servers, max(workers, outlook.minimum.servers)))
