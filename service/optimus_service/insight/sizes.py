"""What finishing a job would take with each size, in time and money, and which size to take. Pure.

Times left are those of a round (`optimus_scheduler.forecast.time_left`), costs their products with prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from optimus_contract import answers
from optimus_models import cost as money
from optimus_models.cost import Estimate, NothingFits
from optimus_models.rescale import RescaleCost
from optimus_scheduler.forecast.forecast import at_present_pace, habits_of
from optimus_scheduler.forecast.prices import job_prices, priced
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.forecast.time_left import step_seconds
from optimus_scheduler.model import Allocation, Interval, Job
from optimus_scheduler.settings import Settings
from optimus_service.insight.progress import interval_body


class Size(NamedTuple):
    """One size and what it promises."""

    allocation: Allocation
    steps_per_second: Estimate
    left: money.TimeAndCost | None
    """Time and cost to the end; None when it is not known how many steps are left."""


class Ahead(NamedTuple):
    """What times and costs depend on beside the job."""

    now: float
    settings: Settings
    left: Estimate | None = None
    """Seconds left with the present size, by the forecast that is shown; other sizes are told relative to it."""


class Limits(NamedTuple):
    """What the choice of a size has to keep."""

    deadline_seconds: float | None = None
    """From now."""
    budget: float | None = None
    """For what is left to do."""


def sizes(
    job: Job, speeds: Speeds, allocations: Sequence[Allocation], steps_left: Estimate | None, ahead: Ahead
) -> list[Size]:
    """Each of `allocations`, all of one GPU type; empty when no speed is measured."""
    if not speeds.is_measured or not allocations:
        return []
    promised = promised_speeds(speeds, allocations)
    if steps_left is None:
        return [Size(allocation, promised[allocation], None) for allocation in allocations]
    prices = job_prices(job.spec, allocations[0].gpu_type, ahead.settings)
    habits = habits_of(job, ahead.now, RescaleCost.fit(job.rescale_seconds).predict())
    left = Interval(*steps_left)

    def seconds_of(speed: Estimate) -> Estimate:
        return Estimate(*at_present_pace(job, left, step_seconds(speed, habits))[0])

    factor = _up_to_date(job, speeds, seconds_of, ahead)
    found = []
    for size in allocations:
        is_present = size == job.allocation and ahead.left is not None
        seconds = ahead.left if is_present and ahead.left is not None else seconds_of(promised[size]).times(factor)
        cost = seconds.times(prices.per_second(priced(size)))
        found.append(Size(size, promised[size], money.TimeAndCost(priced(size), seconds, cost)))
    return found


def _up_to_date(job: Job, speeds: Speeds, seconds_of: Callable[[Estimate], Estimate], ahead: Ahead) -> float:
    """How many times as long the present size takes by the forecast that is shown as by the speeds of now."""
    if ahead.left is None or job.allocation.is_empty:
        return 1.0
    here = seconds_of(speeds.promised(job.allocation)).mean
    return ahead.left.mean / here if 0 < here < math.inf and ahead.left.mean > 0 else 1.0


def promised_speeds(speeds: Speeds, allocations: Sequence[Allocation]) -> dict[Allocation, Estimate]:
    """Steps/s of each size, all of one GPU type, with the interval of a measured speed."""
    return dict(zip(allocations, speeds.promised_many(allocations), strict=True))


def cost_body(found: Sequence[Size], present: Allocation, so_far: float, limits: Limits) -> answers.Cost:
    """The money side of a prediction."""
    known = [size.left for size in found if size.left is not None]
    here = next((size.left for size in found if size.allocation == present), None)
    return answers.Cost(
        so_far=so_far,
        to_finish=None if here is None else interval_body(here.cost),
        cheapest_before_deadline=None
        if limits.deadline_seconds is None
        else _choice(money.cheapest_before(known, limits.deadline_seconds)),
        fastest_under_budget=None if limits.budget is None else _choice(money.fastest_under(known, limits.budget)),
        worth_considering=[choice for size in money.worth_considering(known) if (choice := _choice(size)) is not None],
    )


def _choice(found: money.TimeAndCost | NothingFits) -> answers.Choice | None:
    best = found.nearest if isinstance(found, NothingFits) else found
    if best is None:
        return None
    seconds, cost = interval_body(best.seconds), interval_body(best.cost)
    if seconds is None or cost is None:
        return None
    return answers.Choice(
        workers=best.allocation.workers,
        servers=best.allocation.servers,
        remaining_seconds=seconds,
        cost=cost,
        keeps_limit=not isinstance(found, NothingFits),
    )


def estimate_of(body: answers.Interval | None) -> Estimate | None:
    """The inverse of `interval_body`: a bound that is not known is far away."""
    if body is None:
        return None
    low = 0.0 if body.low is None else body.low
    return Estimate(body.mean, low, float("inf") if body.high is None else body.high)
