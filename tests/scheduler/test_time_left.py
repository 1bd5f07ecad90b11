"""Time left: steps times the seconds of each, and what is left of a forecast once the job has gone on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from optimus_models.calibration import Widening
from optimus_models.cost import Estimate
from optimus_scheduler.forecast.time_left import (
    Course,
    Habits,
    after,
    given_not_ended,
    late_seconds,
    no_surer_than_steps,
    step_seconds,
    time_left,
    times_of_many,
    widened,
)
from optimus_scheduler.model import Interval

SIZES = st.floats(1e-3, 1e9)
DOUBTS = st.floats(0.0, 3.0)


def around(mean: float, down: float, up: float) -> Interval:
    return Interval(mean, mean * math.exp(-down), mean * math.exp(up))


def speed_around(mean: float, doubt: float) -> Estimate:
    return Estimate(mean, mean * math.exp(-doubt), mean * math.exp(doubt))


def width(value: Interval) -> float:
    return math.log(value.high / value.low)


INTERVALS = st.builds(around, SIZES, DOUBTS, DOUBTS)
SPEEDS = st.builds(speed_around, st.floats(1e-3, 1e5), DOUBTS)
WIDENINGS = st.builds(Widening, st.floats(0.4, 5.0), st.floats(0.4, 5.0), st.floats(-3.0, 3.0))
HABITS = st.builds(
    Habits,
    busy_part=st.floats(0.0, 1.0),
    running_seconds=st.floats(0.0, 1e6),
    stopped_seconds=st.floats(0.0, 1e6),
    stops=st.integers(0, 100),
    stop_seconds=st.floats(0.0, 1e3),
    course_ratio=st.just(1.0) | st.floats(0.01, 100.0),
    course_doubt=st.just(0.0) | st.floats(0.0, 2.0),
)


ANY_STEPS = st.one_of(
    INTERVALS, st.sampled_from([Interval(0.0, 0.0, 0.0), Interval(0.0, 0.0, 9.0), Interval(5.0, 0.0, math.inf)])
)
ANY_SPEEDS = st.one_of(SPEEDS, st.builds(Estimate.exactly, SIZES), st.just(Estimate(1.0, 0.0, math.inf)))


@given(st.lists(st.tuples(ANY_STEPS, ANY_SPEEDS, HABITS, st.none() | st.floats(0.0, 2e6)), max_size=12))
def test_many_jobs_at_once_have_the_times_that_each_has_by_itself(
    jobs: list[tuple[Interval, Estimate, Habits, float | None]],
) -> None:
    now = 1e6
    courses = [Course.of(speed, habits, began_at, steps).packed for steps, speed, habits, began_at in jobs]
    times = zip(*times_of_many(courses, now), strict=True)
    for (pace, left), (steps, speed, habits, began_at) in zip(times, jobs, strict=True):
        here = habits._replace(running_seconds=0.0 if began_at is None else now - began_at)
        assert pace == step_seconds(speed, here)
        assert left == time_left(steps, pace)


@given(INTERVALS, SPEEDS, HABITS, WIDENINGS)
def test_the_interval_holds_the_mean_and_is_never_empty(
    steps: Interval, speed: Estimate, habits: Habits, widening: Widening
) -> None:
    left = time_left(steps, step_seconds(speed, habits), widening)
    assert 0 < left.low < left.mean < left.high


def test_a_fixed_number_of_steps_leaves_the_doubt_about_the_speed() -> None:
    """The case that was reported: `55 s (55-55)`."""
    left = time_left(Interval(550, 550, 550), step_seconds(Estimate(10.0, 8.0, 12.5)))
    assert left.mean == pytest.approx(55)
    assert left.low < 44.5
    assert left.high > 68.0


@given(INTERVALS, SPEEDS, st.floats(0.01, 1.0))
def test_more_doubt_about_steps_or_speed_is_a_wider_interval(steps: Interval, speed: Estimate, more: float) -> None:
    factor = math.exp(more)
    pace, before = step_seconds(speed), time_left(steps, step_seconds(speed))
    vaguer_steps = Interval(steps.mean, steps.low / factor, steps.high * factor)
    vaguer_speed = Estimate(speed.mean, speed.low / factor, speed.high * factor)
    assert width(time_left(vaguer_steps, pace)) > width(before)
    assert width(time_left(steps, step_seconds(vaguer_speed))) > width(before)


@given(INTERVALS, SPEEDS, st.floats(1.01, 3.0))
def test_a_wider_calibration_is_a_wider_interval(steps: Interval, speed: Estimate, factor: float) -> None:
    pace = step_seconds(speed)
    before, wider = time_left(steps, pace), time_left(steps, pace, Widening(factor, factor))
    assert width(wider) == pytest.approx(factor * width(before))
    assert width(widened(steps, Widening(factor, factor))) == pytest.approx(factor * width(steps))


@given(INTERVALS, SPEEDS, st.floats(1e-3, 1e3))
def test_no_unit_matters(steps: Interval, speed: Estimate, scale: float) -> None:
    left = time_left(steps, step_seconds(speed))
    many = Interval(steps.mean * scale, steps.low * scale, steps.high * scale)
    faster = Estimate(speed.mean * scale, speed.low * scale, speed.high * scale)
    for same in (time_left(many, step_seconds(faster)), left):
        assert [same.mean, same.low, same.high] == pytest.approx([left.mean, left.low, left.high])
    longer = time_left(many, step_seconds(speed))
    assert [longer.mean, longer.low, longer.high] == pytest.approx(
        [value * scale for value in (left.mean, left.low, left.high)]
    )


def test_evaluations_and_stops_make_it_longer_and_stops_less_sure() -> None:
    steps, speed = Interval(1000, 1000, 1000), Estimate.exactly(1.0)
    plain = time_left(steps, step_seconds(speed))
    pausing = time_left(steps, step_seconds(speed, Habits(busy_part=0.8)))
    stopping = time_left(steps, step_seconds(speed, Habits(1.0, 720.0, 20.0, 4, 10.0)))
    assert pausing.mean == pytest.approx(1250)
    assert width(pausing) == pytest.approx(width(plain))
    assert stopping.mean == pytest.approx(1040)  # four stops of ten seconds in 1,000 seconds
    assert width(stopping) > width(plain)


@given(st.floats(0.0, 1e6), st.floats(1.0, 1e6))
def test_a_speed_that_was_seen_for_longer_is_less_doubtful(seen: float, longer: float) -> None:
    steps, speed = Interval(1000, 1000, 1000), Estimate.exactly(1.0)
    before, later = (
        time_left(steps, step_seconds(speed, Habits(running_seconds=seconds))) for seconds in (seen, seen + longer)
    )
    assert before.mean == later.mean == pytest.approx(1000)
    assert seen == 0 or width(later) <= width(before) + 1e-9


def test_a_speed_that_was_seen_for_seconds_may_be_wrong_by_half() -> None:
    steps, speed = Interval(1000, 1000, 1000), Estimate.exactly(1.0)
    at_first = time_left(steps, step_seconds(speed, Habits(running_seconds=5.0)))
    settled = time_left(steps, step_seconds(speed, Habits(running_seconds=7200.0)))
    assert 600 < at_first.low < 700
    assert 1400 < at_first.high < 1600
    assert 900 < settled.low < settled.high < 1100


@given(INTERVALS, SPEEDS, WIDENINGS)
def test_a_corrected_time_is_no_narrower_than_the_steps_that_take_it(
    steps: Interval, speed: Estimate, widening: Widening
) -> None:
    pace = step_seconds(speed)
    left = time_left(steps, pace)
    found = time_left(steps, pace, no_surer_than_steps(widening, left, steps))
    assert found.mean / found.low >= steps.mean / steps.low * (1.0 - 1e-9)
    assert found.high / found.mean >= steps.high / steps.mean * (1.0 - 1e-9)
    as_corrected = time_left(steps, pace, widening)
    assert width(found) >= width(as_corrected) * (1.0 - 1e-9)
    if width(as_corrected) >= width(left):
        assert width(found) <= width(as_corrected) + width(steps), "what the steps ask for, and no more"


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e4), st.floats(0.0, 1e3))
def test_a_job_is_the_longer_late_the_longer_no_step_came(silent: float, usual: float, more: float) -> None:
    found, later = late_seconds(silent, usual), late_seconds(silent + more, usual)
    assert 0.0 <= found.low <= found.mean <= found.high
    assert found.mean <= later.mean <= found.mean + more + 1e-6
    assert late_seconds(2.0 * max(usual, 1.0), usual) == Interval(0.0, 0.0, 0.0)


def test_a_limit_of_time_bounds_the_time_left() -> None:
    left = time_left(Interval(100, 50, 400), step_seconds(Estimate(1.0, 0.5, 2.0)), most_seconds=120.0)
    assert left.mean == 100
    assert left.high == 120


def test_a_job_that_may_end_at_once_has_only_an_upper_bound() -> None:
    pace = step_seconds(Estimate.exactly(2.0))
    assert time_left(Interval(0, 0, 0), pace) == Interval(0, 0, 0)
    assert time_left(Interval(0, 0, 10), pace).high > 5
    assert time_left(Interval(10, 0, 20), pace).low == 0


@given(INTERVALS, INTERVALS)
def test_waiting_comes_on_top(waiting: Interval, left: Interval) -> None:
    both = after(waiting, left)
    assert both.low <= both.mean <= both.high
    assert both.mean == pytest.approx(waiting.mean + left.mean)
    assert both.high - both.mean >= max(waiting.high - waiting.mean, left.high - left.mean) * (1 - 1e-9) - 1e-6


# --- a forecast of earlier -------------------------------------------------------------------------------------------

TOTALS = st.builds(around, st.floats(10.0, 1e7), st.floats(0.01, 2.0), st.floats(0.01, 2.0))


@given(TOTALS, st.floats(0.0, 20.0))
def test_a_job_that_goes_on_never_has_nothing_left(total: Interval, reached: float) -> None:
    step = reached * total.mean
    now = given_not_ended(total, 0.0, step)
    assert now.low <= now.mean <= now.high
    assert now.low >= step
    assert now.mean > step
    assert now.high > now.mean


@given(TOTALS, st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_the_further_a_job_is_the_later_it_ends(total: Interval, first: float, second: float) -> None:
    sooner, later = (given_not_ended(total, 0.0, part * total.mean) for part in sorted((first, second)))
    assert later.mean >= sooner.mean * (1 - 1e-9)
    assert later.high >= sooner.high * (1 - 1e-9)


@given(TOTALS, st.floats(0.0, 1.0))
def test_a_forecast_of_this_step_is_as_it_was(total: Interval, part: float) -> None:
    made_at = part * total.low
    assert given_not_ended(total, made_at, made_at) == total
    soon = given_not_ended(total, made_at, made_at * (1 + 1e-9))
    assert [soon.mean, soon.low, soon.high] == pytest.approx([total.mean, total.low, total.high], rel=1e-6)


def test_far_beyond_its_forecast_as_much_again_is_left() -> None:
    now = given_not_ended(Interval(100, 90, 110), 0.0, 10_000.0)
    assert now.mean - 10_000 == pytest.approx(10_000, rel=0.2)
    assert now.high - 10_000 > 50_000


@pytest.mark.parametrize("step", [60.0, 100.0, 140.0])
def test_the_interval_holds_four_fifths_of_the_jobs_that_got_so_far(step: float) -> None:
    """Drawn from the distribution that the forecast states, of those that have not ended yet."""
    total = around(100.0, 0.5, 0.8)
    random = np.random.default_rng(0)
    logits = np.log(1.0 / random.uniform(size=200_000) - 1.0)
    scale = np.where(logits < 0, 0.5, 0.8) / math.log(9.0)
    ends = 100.0 * np.exp(scale * logits)
    left = ends[ends > step]
    now = given_not_ended(total, 0.0, step)
    assert np.mean(left <= now.mean) == pytest.approx(0.5, abs=0.01)
    assert np.mean((now.low <= left) & (left <= now.high)) == pytest.approx(0.8, abs=0.01)


@given(TOTALS, st.floats(0.01, 3.0), st.floats(1.0, 3.0))
def test_a_limit_bounds_the_end(total: Interval, reached: float, most: float) -> None:
    step, limit = reached * total.mean, most * total.mean
    assume(step <= limit)
    assert given_not_ended(total, 0.0, step, limit).high <= limit


def test_an_end_that_nothing_bounds_stays_so() -> None:
    now = given_not_ended(Interval(100, 80, math.inf), 0.0, 30.0)
    assert now.mean == pytest.approx(100, rel=0.02)
    assert now.high == math.inf


def test_a_certain_end_stays_certain() -> None:
    certain = Interval(100, 100, 100)
    assert given_not_ended(certain, 0.0, 50.0) == certain
    assert given_not_ended(certain, 0.0, 101.0).mean == 101


@pytest.mark.parametrize("step", [5e-324, 1e-9, 1.0, 1e15])
def test_a_forecast_that_is_absurdly_far_is_still_one(step: float) -> None:
    found = given_not_ended(Interval(1.7e308, 1.0, math.inf), 0.0, step)
    assert found.mean > step
