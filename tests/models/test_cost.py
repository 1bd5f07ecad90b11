"""Time and money to the end, and the choices between them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.cost import (
    Allocation,
    Estimate,
    NothingFits,
    Prices,
    TimeAndCost,
    UnknownPrice,
    cheapest_before,
    fastest_under,
    times_and_costs,
    worth_considering,
)

PRICES = Prices({"slow": 1.0, "fast": 3.0}, server_hour=0.5)
GRID = [Allocation(w, p, gpu) for gpu in ("slow", "fast") for w in (1, 2, 4, 8) for p in (1, 2)]


def _speed(allocation: Allocation) -> Estimate:
    """Twice as fast per GPU on the fast type; more workers help less and less."""
    mean = (2.0 if allocation.gpu_type == "fast" else 1.0) * allocation.workers**0.7
    return Estimate(mean, 0.8 * mean, 1.25 * mean)


def _possible(steps: Estimate | None = None) -> tuple[TimeAndCost, ...]:
    return times_and_costs(GRID, steps or Estimate(7200.0, 6000.0, 9000.0), _speed, PRICES)


def test_cost_counts_workers_and_servers_by_the_hour() -> None:
    (only,) = times_and_costs(
        [Allocation(2, 1, "fast")], Estimate.exactly(7200.0), lambda _: Estimate.exactly(1.0), PRICES
    )
    assert only.seconds == Estimate.exactly(7200.0)
    assert only.cost == Estimate.exactly(2.0 * (2 * 3.0 + 0.5))


def test_uncertain_steps_and_speeds_add_up_as_squares() -> None:
    quotient = Estimate(100.0, 50.0, 200.0).over(Estimate(10.0, 5.0, 20.0))
    factor = math.exp(math.sqrt(2.0) * math.log(2.0))
    assert quotient == pytest.approx((10.0, 10.0 / factor, 10.0 * factor))


def test_a_job_that_does_not_move_never_ends() -> None:
    assert Estimate.exactly(5.0).over(Estimate(0.0, 0.0, 1.0)).mean == math.inf
    assert Estimate.exactly(5.0).over(Estimate(1.0, 0.0, 1.0)).high == math.inf


def test_cheapest_before_a_deadline_takes_more_only_as_the_deadline_gets_closer() -> None:
    relaxed, tight = (cheapest_before(_possible(), hours * 3600) for hours in (10.0, 0.9))
    assert isinstance(relaxed, TimeAndCost)
    assert isinstance(tight, TimeAndCost)
    assert relaxed.cost.mean < tight.cost.mean
    assert tight.seconds.high <= 0.9 * 3600


def test_what_cannot_be_done_says_what_comes_nearest() -> None:
    answer = cheapest_before(_possible(), 1.0)
    assert isinstance(answer, NothingFits)
    assert answer.nearest is not None
    assert answer.nearest.allocation.workers == 8
    assert isinstance(fastest_under(_possible(), 0.01), NothingFits)
    assert fastest_under([], 1.0) == NothingFits("no allocation costs at most 1", None)


def test_a_missing_price_is_named() -> None:
    with pytest.raises(UnknownPrice, match=r"'other' \(known: fast, slow\)"):
        times_and_costs([Allocation(1, 1, "other")], Estimate.exactly(1.0), _speed, PRICES)


POSITIVE = st.floats(1e-6, 1e6)


@given(st.tuples(POSITIVE, POSITIVE, POSITIVE), st.tuples(POSITIVE, POSITIVE, POSITIVE))
def test_quotients_stay_ordered(above: tuple[float, float, float], below: tuple[float, float, float]) -> None:
    a, b = sorted(above), sorted(below)
    quotient = Estimate(a[1], a[0], a[2]).over(Estimate(b[1], b[0], b[2]))
    assert quotient.low <= quotient.mean <= quotient.high


@given(deadline=st.floats(100.0, 1e5))
def test_the_cheapest_keeps_its_deadline_and_nothing_cheaper_does(deadline: float) -> None:
    possible = _possible()
    answer = cheapest_before(possible, deadline)
    in_time = [option for option in possible if option.seconds.high <= deadline]
    if isinstance(answer, NothingFits):
        assert not in_time
    else:
        assert answer in in_time
        assert answer.cost.mean == min(option.cost.mean for option in in_time)


@given(budget=st.floats(0.1, 100.0))
def test_the_fastest_keeps_its_budget_and_nothing_faster_does(budget: float) -> None:
    possible = _possible()
    answer = fastest_under(possible, budget)
    within = [option for option in possible if option.cost.high <= budget]
    if isinstance(answer, NothingFits):
        assert not within
    else:
        assert answer in within
        assert answer.seconds.mean == min(option.seconds.mean for option in within)


def test_what_is_worth_considering_gets_cheaper_as_it_gets_slower() -> None:
    front = worth_considering(_possible())
    assert len(front) > 1
    assert [option.cost.mean for option in front] == sorted((o.cost.mean for o in front), reverse=True)
