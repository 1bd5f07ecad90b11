"""A baseline of fairness: dominant resource fairness."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import by_arrival, grant, one_more
from optimus_scheduler.allocate.policy import Contest, Grant
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

    def allocate(self, contest: Contest, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every contender; together they fit in the capacity."""
        jobs = sorted(contest.contenders, key=by_arrival)
        sizes: dict[str, Allocation] = {}
        room = contest.capacity
        # (share, arrival, next size): a job that does not fit in what is left never will.
        line = [(0.0, number, outlook.minimum) for number, outlook in enumerate(jobs)]
        heapq.heapify(line)
        while line:
            _, number, size = heapq.heappop(line)
            outlook = jobs[number]
            present = sizes.get(outlook.id)
            added = outlook.demand(size) - outlook.demand(present) if present else outlook.demand(size)
            if not added.fits_in(room):
                continue
            room, sizes[outlook.id] = room - added, size
            larger = one_more(outlook, size)
            if larger is not None:
                heapq.heappush(line, (_share(outlook, size, contest), number, larger))
        return {outlook.id: grant(outlook, sizes.get(outlook.id)) for outlook in jobs}


def _share(outlook: Outlook, size: Allocation, contest: Contest) -> float:
    return outlook.demand(size).dominant_share(contest.capacity) / outlook.job.spec.priority
