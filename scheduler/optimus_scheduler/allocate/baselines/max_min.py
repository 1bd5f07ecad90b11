"""A baseline of fairness in what jobs get done, rather than in what they hold."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from optimus_scheduler.allocate.baselines.fixed_ratio import by_arrival, grant, one_more
from optimus_scheduler.allocate.policy import Contest, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation
from optimus_scheduler.place.network_cost import spread_evenly
from optimus_scheduler.settings import Settings


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
    spread = staticmethod(spread_evenly)

    def allocate(self, contest: Contest, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every contender; together they fit in the capacity."""
        jobs = sorted(contest.contenders, key=by_arrival)
        fair = {outlook.id: outlook.speeds.at(_equal_part(outlook, contest)) for outlook in jobs}
        sizes: dict[str, Allocation] = {}
        room = contest.capacity
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
            if larger is not None and outlook.speedup(larger, size) >= 1.0:
                speed = outlook.speeds.at(size) / fair[outlook.id] / outlook.job.spec.priority
                heapq.heappush(line, (speed, number, larger))
        return {outlook.id: grant(outlook, sizes.get(outlook.id)) for outlook in jobs}


def _equal_part(outlook: Outlook, contest: Contest) -> Allocation:
    """The size that 1/n of the cluster holds, workers and servers in step; at least the minimum."""
    part = 1.0 / len(contest.contenders)
    size = outlook.minimum
    while (larger := one_more(outlook, size)) is not None:
        if outlook.demand(larger).dominant_share(contest.capacity) > part:
            break
        size = larger
    return size
