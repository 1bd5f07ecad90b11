"""What finishing a job takes, in time and in money, with each allocation that is possible, and which one to take.

    seconds = steps left / speed          cost = seconds / 3600 · (workers · price of a GPU + servers · price of one)

Steps and speeds come in as intervals and times and costs go out as intervals: the errors of the two are independent
and relative, so the half-widths add up as squares of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

SECONDS_PER_HOUR = 3600.0

GPU_HOUR_PRICES: Mapping[str, float] = MappingProxyType({"K80": 0.45, "P100": 1.46, "V100": 2.48, "T4": 0.35})
"""US dollars for one hour of one GPU, without its machine: list prices on demand of Google Cloud in an American region
about 2020 to 2023. For examples; pass your own for decisions."""
SERVER_HOUR_PRICE = 0.20
"""US dollars for one hour of a parameter server: four virtual cores at the same list prices."""


class UnknownPrice(ValueError):
    """There is no price for a GPU type. The message names it and those that have one."""


class Estimate(NamedTuple):
    """`low <= mean <= high`: an interval of whatever coverage the inputs have."""

    mean: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Estimate:
        return cls(value, value, value)

    def times(self, factor: float) -> Estimate:
        """Scaled by a known `factor` >= 0."""
        return Estimate(self.mean * factor, self.low * factor, self.high * factor)

    def over(self, other: Estimate) -> Estimate:
        """The quotient of two independent positive quantities; inf where the divisor is 0."""
        if other.mean <= 0:
            return Estimate.exactly(math.inf)
        mean = self.mean / other.mean
        down = math.hypot(_log_ratio(self.mean, self.low), _log_ratio(other.high, other.mean))
        up = math.hypot(_log_ratio(self.high, self.mean), _log_ratio(other.mean, other.low))
        return Estimate(mean, mean * math.exp(-down), mean * _exp(up))


class Allocation(NamedTuple):
    """How many tasks of which kind; without servers, all-reduce."""

    workers: int
    servers: int
    gpu_type: str


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per hour."""

    gpu_hour: Mapping[str, float]
    """By GPU type."""
    server_hour: float = 0.0

    def per_second(self, allocation: Allocation) -> float:
        """Raises `UnknownPrice`."""
        price = self.gpu_hour.get(allocation.gpu_type)
        if price is None:
            known = ", ".join(sorted(self.gpu_hour)) or "none"
            raise UnknownPrice(f"no price for GPU type {allocation.gpu_type!r} (known: {known})")
        return (allocation.workers * price + allocation.servers * self.server_hour) / SECONDS_PER_HOUR


class TimeAndCost(NamedTuple):
    """What a job would still take with one allocation."""

    allocation: Allocation
    seconds: Estimate
    cost: Estimate


class NothingFits(NamedTuple):
    """No allocation keeps the limit."""

    reason: str
    nearest: TimeAndCost | None
    """The one that comes nearest to keeping it; None when there were no allocations at all."""


def times_and_costs(
    allocations: Iterable[Allocation],
    steps_left: Estimate,
    steps_per_second: Callable[[Allocation], Estimate],
    prices: Prices,
) -> tuple[TimeAndCost, ...]:
    """Time and cost to the end for each of `allocations`, in their order. Raises `UnknownPrice`."""
    return tuple(
        _time_and_cost(allocation, steps_left, steps_per_second(allocation), prices) for allocation in allocations
    )


def _time_and_cost(allocation: Allocation, steps_left: Estimate, speed: Estimate, prices: Prices) -> TimeAndCost:
    seconds = steps_left.over(speed)
    return TimeAndCost(allocation, seconds, seconds.times(prices.per_second(allocation)))


def cheapest_before(possible: Sequence[TimeAndCost], deadline_seconds: float) -> TimeAndCost | NothingFits:
    """The cheapest allocation that ends within `deadline_seconds`, by the upper end of its interval. Ties go to the
    faster, then to the smaller.
    """
    kept = [option for option in possible if option.seconds.high <= deadline_seconds]
    if kept:
        return min(kept, key=lambda option: (option.cost.mean, option.seconds.mean, option.allocation))
    nearest = min(possible, key=lambda option: option.seconds.high, default=None)
    return NothingFits(f"no allocation ends within {deadline_seconds:g} s", nearest)


def fastest_under(possible: Sequence[TimeAndCost], budget: float) -> TimeAndCost | NothingFits:
    """The fastest allocation whose cost stays within `budget`, by the upper end of its interval; then the cheaper."""
    kept = [option for option in possible if option.cost.high <= budget]
    if kept:
        return min(kept, key=lambda option: (option.seconds.mean, option.cost.mean, option.allocation))
    nearest = min(possible, key=lambda option: option.cost.high, default=None)
    return NothingFits(f"no allocation costs at most {budget:g}", nearest)


def worth_considering(possible: Sequence[TimeAndCost]) -> tuple[TimeAndCost, ...]:
    """Those that no other beats in both time and cost, fastest first."""
    kept: list[TimeAndCost] = []
    for option in sorted(possible, key=lambda option: (option.seconds.mean, option.cost.mean, option.allocation)):
        if not kept or option.cost.mean < kept[-1].cost.mean:
            kept.append(option)
    return tuple(kept)


def _log_ratio(larger: float, smaller: float) -> float:
    """log(larger / smaller) >= 0; 0 when there is nothing to compare, inf when the smaller one is 0."""
    if larger <= 0 or larger <= smaller:
        return 0.0
    return math.log(larger) - math.log(smaller) if smaller > 0 else math.inf


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf
