"""What finishing a job would take with each size, in time and money, and which size to take. Pure.

Step counts and speeds are both uncertain: their intervals are combined (`optimus_models.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optimus_contract import answers
from optimus_models import cost as money
from optimus_models.cost import Estimate, NothingFits, Prices
from optimus_scheduler.forecast.prices import job_prices, priced
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import Allocation, JobSpec
from optimus_scheduler.settings import Settings
from optimus_service.insight.progress import finite

_COVERAGE = 0.8
"""Of all intervals that the API shows."""


class Size(NamedTuple):
    """One size and what it promises."""

    allocation: Allocation
    steps_per_second: Estimate
    outlook: money.Outlook | None
    """Time and cost to the end; None when nobody knows how many steps are left."""


class Limits(NamedTuple):
    """What the choice of a size has to keep."""

    deadline_seconds: float | None = None
    """From now."""
    budget: float | None = None
    """For what is left to do."""


def sizes(
    spec: JobSpec, speeds: Speeds, allocations: Sequence[Allocation], steps_left: Estimate | None, settings: Settings
) -> list[Size]:
    """Each of `allocations`, all of one GPU type; empty when no speed is known."""
    if speeds.source is None or not allocations:
        return []
    promised = promised_speeds(speeds, allocations)
    if steps_left is None:
        return [Size(allocation, promised[allocation], None) for allocation in allocations]
    prices = job_prices(spec, allocations[0].gpu_type, settings)
    return [
        Size(allocation, promised[allocation], _outlook(allocation, steps_left, promised[allocation], prices))
        for allocation in allocations
    ]


def promised_speeds(speeds: Speeds, allocations: Sequence[Allocation]) -> dict[Allocation, Estimate]:
    """Steps/s of each size, all of one GPU type."""
    workers = np.array([size.workers for size in allocations])
    servers = np.array([max(size.servers, 1) for size in allocations])
    low, high = speeds.model.predict_interval(workers, servers, _COVERAGE)
    means = speeds.model.predict(workers, servers)
    found = {}
    for size, below, mean, above in zip(allocations, low.tolist(), means.tolist(), high.tolist(), strict=True):
        speed = speeds.at(size)  # the model's own, or that for another GPU type
        found[size] = Estimate(speed, speed * below / mean, speed * above / mean)
    return found


def _outlook(allocation: Allocation, steps_left: Estimate, speed: Estimate, prices: Prices) -> money.Outlook:
    return money.outlooks([priced(allocation)], steps_left, lambda _: speed, prices)[0]


def cost_body(found: Sequence[Size], present: Allocation, so_far: float, limits: Limits) -> answers.Cost:
    """The money side of a prediction."""
    known = [size.outlook for size in found if size.outlook is not None]
    here = next((size.outlook for size in found if size.allocation == present), None)
    return answers.Cost(
        so_far=so_far,
        to_finish=None if here is None else interval_body(here.cost),
        cheapest_before_deadline=None
        if limits.deadline_seconds is None
        else _choice(money.cheapest_before(known, limits.deadline_seconds)),
        fastest_under_budget=None if limits.budget is None else _choice(money.fastest_under(known, limits.budget)),
        worth_considering=[choice for size in money.worth_considering(known) if (choice := _choice(size)) is not None],
    )


def _choice(found: money.Outlook | NothingFits) -> answers.Choice | None:
    outlook = found.nearest if isinstance(found, NothingFits) else found
    if outlook is None:
        return None
    seconds, cost = interval_body(outlook.seconds), interval_body(outlook.cost)
    if seconds is None or cost is None:
        return None
    return answers.Choice(
        workers=outlook.allocation.workers,
        servers=outlook.allocation.servers,
        remaining_seconds=seconds,
        cost=cost,
        keeps_limit=not isinstance(found, NothingFits),
    )


def interval_body(estimate: Estimate) -> answers.Interval | None:
    """An estimate as the API shows it; None when nobody can say."""
    if finite(estimate.mean) is None:
        return None
    return answers.Interval(mean=estimate.mean, low=finite(estimate.low), high=finite(estimate.high))


def estimate_of(body: answers.Interval | None) -> Estimate | None:
    """The inverse of `interval_body`: a bound that nobody knows is far away."""
    if body is None:
        return None
    low = 0.0 if body.low is None else body.low
    return Estimate(body.mean, low, float("inf") if body.high is None else body.high)
