"""The policy that plans all jobs to their ends: no later job changes what an earlier one was promised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, NOW, a_cluster, a_job, a_spec, law, samples

from optimus_scheduler.ahead.look_ahead import look_ahead
from optimus_scheduler.ahead.queue import Queue
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.allocate.policy import AllocationInput, Planned
from optimus_scheduler.allocate.predictable import PredictablePolicy
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Interval, Resources, total_of
from optimus_scheduler.settings import Settings

POLICY = PredictablePolicy()
SETTINGS = Settings()
CAPACITY = Resources(16.0, 2**40)


(MEASURED,) = forecast_all([a_job("measured", measured=samples(law(), ALL_SIZES))], NOW, SETTINGS)


def waiting(number: int, steps: float, least: int = 1, most: int = 4, has: int = 0) -> Outlook:
    """A job whose length and speeds are known. The later its number, the later it came."""
    spec = a_spec(minimum=(least, least), maximum=(max(most, least), max(most, least)))
    job = replace(a_job(f"job-{number:02d}", spec=spec, has=(has, has)), submitted_at=NOW - 100 + number)
    told = MEASURED.forecast._replace(remaining_steps=Interval(steps, steps, steps))
    return MEASURED._replace(job=job, forecast=told, stop_seconds=0.0)


def planned(*outlooks: Outlook) -> dict[str, Planned]:
    return POLICY.plan(AllocationInput(outlooks, CAPACITY), SETTINGS)


jobs_drawn = st.lists(
    st.builds(
        lambda steps, least, most: (steps, least, most), st.integers(1, 5000), st.integers(1, 4), st.integers(1, 8)
    ),
    min_size=1,
    max_size=10,
)


def drawn_jobs(drawn: list[tuple[int, int, int]]) -> list[Outlook]:
    return [waiting(number, *each) for number, each in enumerate(drawn)]


@settings(max_examples=60)
@given(drawn=jobs_drawn, later=jobs_drawn)
def test_later_jobs_change_nothing_of_earlier_ones(
    drawn: list[tuple[int, int, int]], later: list[tuple[int, int, int]]
) -> None:
    jobs = drawn_jobs([*drawn, *later])
    before = planned(*jobs[: len(drawn)])
    after = planned(*jobs)
    assert {job_id: after[job_id] for job_id in before} == before


@settings(max_examples=60)
@given(drawn=jobs_drawn)
def test_the_plan_fits_in_the_cluster_at_every_instant(drawn: list[tuple[int, int, int]]) -> None:
    jobs = {one.id: one for one in drawn_jobs(drawn)}
    plan = planned(*jobs.values())
    assert plan.keys() == jobs.keys()
    for instant in {one.start for one in plan.values()}:
        taken = [jobs[key].demand(one.size) for key, one in plan.items() if one.start <= instant < one.end]
        assert total_of(taken).fits_in(CAPACITY)


@settings(max_examples=60)
@given(drawn=jobs_drawn)
def test_each_event_finds_the_same_plan_again(drawn: list[tuple[int, int, int]]) -> None:
    """Follow the plan from event to event: what is left then is planned to the same ends.

    Or to an earlier one, where a gap and a job are of the same length but for the last digit.
    """
    jobs = drawn_jobs(drawn)
    first, now = planned(*jobs), 0.0
    plan = first
    while jobs:
        step = min(min(plan[one.id].end for one in jobs), min((plan[one.id].start or 1e9) for one in jobs))
        jobs = [_later(one, plan[one.id], step) for one in jobs if plan[one.id].end > step + 1e-6]
        now += step
        plan = planned(*jobs)
        for one in jobs:
            assert now + plan[one.id].end <= first[one.id].end * (1.0 + 1e-6) + 1e-3


def _later(outlook: Outlook, plan: Planned, seconds: float) -> Outlook:
    """The job so many seconds later, if it went as planned."""
    if plan.start >= seconds:
        return outlook
    left = outlook.forecast.remaining_steps
    assert left is not None
    steps = left.mean - outlook.speeds.at(plan.size) * (seconds - plan.start)
    least, most, has = outlook.minimum.workers, outlook.maximum.workers, plan.size.workers
    return waiting(int(outlook.id.removeprefix("job-")), steps, least, most, has)


def test_a_small_job_starts_in_a_gap_before_its_turn() -> None:
    whole, next_whole = waiting(0, 10_000, least=7, most=7), waiting(1, 10_000, least=8, most=8)
    small, long = waiting(2, 10, most=1), waiting(3, 10**6, most=1)
    plan = planned(whole, next_whole, small, long)
    assert plan["job-00"].start == 0.0
    assert plan["job-01"].start == plan["job-00"].end
    assert plan["job-02"].start == 0.0, "it is done before the gap is needed"
    assert plan["job-03"].start >= plan["job-01"].end, "it would delay the job before it"


def test_no_job_starts_with_tasks_that_are_hardly_worth_it() -> None:
    (alone,) = planned(waiting(0, 5000, most=8)).values()
    one = MEASURED.speeds.at(Allocation(1, 1)) / 2
    assert MEASURED.speeds.at(alone.size) / (alone.size.workers + alone.size.servers) >= 0.75 * one
    assert alone.size.workers > 1


def test_a_running_job_keeps_its_size() -> None:
    plan = planned(waiting(0, 5000, most=8, has=1))
    assert plan["job-00"].size == Allocation(1, 1)


def test_a_job_that_should_be_done_still_holds_what_it_has() -> None:
    plan = planned(waiting(0, 0, least=8, most=8, has=8), waiting(1, 100))
    assert plan["job-01"].start > 0.0


def test_a_job_that_has_no_room_even_alone_holds_up_nobody() -> None:
    plan = planned(waiting(0, 100, least=9, most=9), waiting(1, 100))
    assert plan.keys() == {"job-01"}


def test_what_is_promised_is_what_is_planned() -> None:
    jobs = tuple(drawn_jobs([(4000, 4, 8), (3000, 4, 8), (50, 1, 2), (2000, 2, 8)]))
    queue = Queue(NOW, a_cluster(CAPACITY.cpu, memory_gib=1024), jobs, {})
    ahead = look_ahead(queue, policy_named("predictable"), SETTINGS)
    for job_id, one in planned(*jobs).items():
        end = ahead[job_id].end
        assert end is not None
        assert end.mean - NOW == pytest.approx(one.end, rel=0.02)
