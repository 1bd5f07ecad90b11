"""Decisions that say nothing new are not stored; what is asked of any round is still answered."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.loop.loop_world import World

from optimus_scheduler.model import Allocation, Decision, Forecast, Interval, Plan, Reason
from optimus_service.loop.decisions import NEAR, News, says_the_same

FORECAST = Forecast("job-1", Interval(1000.0, 900.0, 1100.0), Interval(500.0, 400.0, 600.0), 0.5, rule="loss_decrease")
DECISION = Decision(
    job_id="job-1",
    allocation=Allocation(2, 1),
    previous=Allocation(2, 1),
    reason=Reason.CLUSTER_FULL,
    message="It waits for 1,030 jobs.",
    forecast=FORECAST,
    gain=0.5,
)


def plan_of(*decisions: Decision) -> Plan:
    return Plan(decisions, ())


@pytest.mark.parametrize(
    "changes",
    [
        {"allocation": Allocation(3, 1)},
        {"previous": Allocation(1, 1)},
        {"reason": Reason.LEARNING_SPEED},
        {"batch": 64},
        {"message": "It waits for some jobs."},
        {"message": "It waits for 1,100 jobs."},
        {"gain": 0.6},
        {"gain": None},
        {"gain": math.inf},
        {"next_gain": 0.1},
        {"forecast": FORECAST._replace(total_steps=None)},
        {"forecast": FORECAST._replace(total_steps=Interval(1000.0, 900.0, math.inf))},
        {"forecast": FORECAST._replace(remaining_steps=Interval(470.0, 400.0, 600.0))},
        {"forecast": FORECAST._replace(converged=True)},
        {"forecast": FORECAST._replace(rule="max_steps")},
    ],
)
def test_what_is_new_is_stored(changes: dict[str, object]) -> None:
    assert not says_the_same(DECISION, DECISION._replace(**changes))  # type: ignore[arg-type]
    assert not says_the_same(DECISION._replace(**changes), DECISION)  # type: ignore[arg-type]


def test_numbers_that_are_near_are_not_new() -> None:
    near = DECISION._replace(gain=0.51, message="It waits for 1,050 jobs.")
    assert says_the_same(DECISION, near)
    odd = DECISION._replace(gain=math.nan, next_gain=math.inf)
    assert says_the_same(odd, odd)
    assert says_the_same(odd, odd._replace(gain=-math.nan, message="It waits for 1,050 jobs."))


@given(st.lists(st.floats(0.9, 1.1), max_size=50))
def test_what_is_stored_is_never_far_from_what_was_decided(factors: list[float]) -> None:
    """However slowly a figure drifts, and however often."""
    news, gain, stored = News(), 1.0, math.nan
    for factor in factors:
        gain *= factor
        plan = plan_of(DECISION._replace(gain=gain))
        for each in (new := news.of(plan, fence=1)):
            assert each.gain is not None
            stored = each.gain
        news.stored(new, plan)
        assert abs(stored - gain) <= NEAR * stored


def test_a_new_leader_stores_all_that_it_decides() -> None:
    news, plan = News(), plan_of(DECISION)
    news.stored(news.of(plan, fence=1), plan)
    assert news.of(plan, fence=1) == []
    assert news.of(plan, fence=2) == [DECISION], "another one may have decided otherwise meanwhile"


def test_that_an_end_cannot_be_said_any_more_or_can_again_is_new() -> None:
    news, plan, told = News(), plan_of(DECISION), []
    for without_end in ((), (), (DECISION.job_id,), (DECISION.job_id,), ()):
        new = news.of(plan, 1, without_end)
        news.stored(new, plan, without_end)
        told.append(bool(new))
    assert told == [True, False, True, False, True]


def test_a_decision_that_was_not_stored_is_new_again() -> None:
    news, plan = News(), plan_of(DECISION)
    assert news.of(plan, fence=1) == news.of(plan, fence=1) == [DECISION]


def test_a_job_that_came_back_is_told_again() -> None:
    news = News()
    for plan in (plan_of(DECISION), plan_of(), plan_of(DECISION)):
        new = news.of(plan, fence=1)
        news.stored(new, plan)
    assert new == [DECISION]


def test_quiet_rounds_store_no_decision_and_the_last_one_holds(world: World) -> None:
    world.submit()
    world.submit("job-2")
    for _ in range(3):
        world.round()
    before = world.repository.rounds.decisions("job-1").items
    n_rounds = len(world.repository.rounds.page().items)
    for _ in range(5):
        world.clock.now += 60.0
        world.round()
    assert world.repository.rounds.decisions("job-1").items == before
    assert world.repository.rounds.latest_decisions(["job-1"])["job-1"].allocation == before[0].allocation
    assert len(world.repository.rounds.page().items) == n_rounds + 5, "rounds are stored all the same"
