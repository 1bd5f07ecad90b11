"""A planned schedule of learning rates as few points, and the way to the service."""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections.abc import Callable, Sequence

from optimus_contract.limits import MAX_RATE_POINTS
from optimus_contract.result import PlannedRates
from optimus_workers.errors import ServiceAway, ServiceRefused

log = logging.getLogger(__name__)

SAMPLED_STEPS = 2001
"""A longer schedule is looked at in so many steps: a sudden change is known to a 2000th of its length."""
EXACT = 1e-9
"""Of the largest rate: points that are so close to the line between their neighbours say nothing new."""


def sampled_steps(first: int, end: int) -> list[int]:
    """Steps from `first` to before `end`, increasing: all, or evenly spaced ones with the first and the last."""
    last = max(first, end - 1)
    n = min(last - first, SAMPLED_STEPS - 1)
    return sorted({first + round(index * (last - first) / n) for index in range(n + 1)}) if n else [first]


def thinned(steps: Sequence[int], rates: Sequence[float], most: int = MAX_RATE_POINTS) -> PlannedRates:
    """At most `most` (2 or more) of these points, so that straight lines between them pass near the others.

    The point that is farthest from the lines so far comes next (Douglas and Peucker 1973), until all are on them.
    `steps`: increasing, at least one.
    """
    kept = {0, len(steps) - 1}
    enough = EXACT * max(rates)
    heap = [_farthest(steps, rates, 0, len(steps) - 1)]
    while len(kept) < most:
        distance, place, first, last = heapq.heappop(heap)
        if -distance <= enough:
            break
        kept.add(place)
        for begin, end in ((first, place), (place, last)):
            heapq.heappush(heap, _farthest(steps, rates, begin, end))
    chosen = sorted(kept)
    return PlannedRates(steps=[steps[place] for place in chosen], rates=[rates[place] for place in chosen])


def planned(points: Sequence[tuple[int, float]]) -> PlannedRates | None:
    """The plan with these points (step, rate), in any order; None where a rate is no number from 0."""
    by_step = dict(points)
    if not by_step or not all(math.isfinite(rate) and rate >= 0 for rate in by_step.values()):
        return None
    steps = sorted(by_step)
    return thinned(steps, [by_step[step] for step in steps])


def send_planned_rates(plan: PlannedRates, put: Callable[[PlannedRates], None]) -> None:
    """Send a plan in the background. A service that is away costs the job nothing but the forecast.

    `put`: `ServiceClient.put_planned_rates`, which raises `ServiceAway` or `ServiceRefused`.
    """
    threading.Thread(target=_send_once, args=(plan, put), name="planned-rates", daemon=True).start()


def send(plan: PlannedRates, put: Callable[[PlannedRates], None]) -> None:
    """Send a plan; one that the service refuses is given up. Raises `ServiceAway`."""
    try:
        put(plan)
    except ServiceRefused as error:
        log.info("the planned learning rates are not taken: %s", error)


def _send_once(plan: PlannedRates, put: Callable[[PlannedRates], None]) -> None:
    try:
        send(plan, put)
    except ServiceAway as error:
        log.info("the planned learning rates did not arrive: %s", error)


def _farthest(steps: Sequence[int], rates: Sequence[float], first: int, last: int) -> tuple[float, int, int, int]:
    """The point between `first` and `last` that is farthest from the line through them: (-distance, place, ...)."""
    rise = (rates[last] - rates[first]) / max(1, steps[last] - steps[first])
    farthest = max(
        (
            (abs(rates[first] + rise * (steps[place] - steps[first]) - rates[place]), -place)
            for place in range(first + 1, last)
        ),
        default=(0.0, -first),
    )
    return -farthest[0], -farthest[1], first, last
