"""How a run goes on, by the courses of ended ones."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from optimus_models.speed.course import AS_MEASURED, CourseToCome, Measured, RunCourse, course_to_come

SIGMA = 0.2


def slowing(times: float = 3.5, at: int = 120, total: int = 300, each: float = 0.1) -> RunCourse:
    """A run whose steps take so many times as long from a step on."""
    steps = [float(step) for step in range(5, total, 10)]
    found = RunCourse.of(steps, [each if step < at else times * each for step in steps])
    assert found is not None
    return found


def measured(step: float, parts: int = 2) -> Measured:
    borders = np.linspace(0.0, step, parts + 1)
    return Measured(borders[:-1], borders[1:], np.ones(parts))


def to_come(runs: list[RunCourse], step: float = 50.0, total: float = 300.0) -> CourseToCome:
    return course_to_come(runs, step, total, measured(step), lambda _: SIGMA)


PACES = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=32)


@st.composite
def courses(draw: st.DrawFn) -> RunCourse:
    paces = draw(PACES)
    found = RunCourse.of([10.0 * place + 5.0 for place in range(len(paces))], paces)
    assert found is not None
    return found


def test_the_seconds_of_a_run_are_those_of_its_parts() -> None:
    course = slowing()
    until = course.until(np.array([0.0, 60.0, 120.0, 220.0, 300.0, 400.0]))
    assert until.tolist() == pytest.approx([0.0, 6.0, 12.0, 47.0, 75.0, 110.0])


@pytest.mark.parametrize(
    ("steps", "paces"),
    [
        ([], []),
        ([5.0], [0.1]),
        ([5.0, 15.0], [0.1, 0.0]),
        ([5.0, 15.0], [0.1, math.nan]),
        ([15.0, 5.0], [0.1, 0.1]),
        ([5.0, math.inf], [0.1, 0.1]),
        ([0.0, 0.0], [0.1, 0.1]),
    ],
)
def test_what_is_no_course_is_none(steps: list[float], paces: list[float]) -> None:
    assert RunCourse.of(steps, paces) is None


def test_a_large_change_is_believed_after_one_run_or_two() -> None:
    true = (70 * 0.1 + 180 * 0.35) / 250 / 0.1
    one, two, many = (to_come([slowing()] * n) for n in (1, 2, 11))
    assert 2.0 < one.ratio < two.ratio < many.ratio
    assert two.ratio == pytest.approx(true, rel=0.15)
    assert many.ratio == pytest.approx(true, rel=0.02)
    assert one.doubt > two.doubt > many.doubt > 0.0


@pytest.mark.parametrize("n_runs", [1, 2, 4, 8, 16])
def test_noise_is_not_believed(n_runs: int) -> None:
    believed = 0
    for seed in range(20):
        noise = random.Random(seed)
        runs = [slowing(noise.choice((1 / 1.1, 1.05, 1.1, 1 / 1.05))) for _ in range(n_runs)]
        believed += to_come(runs) != AS_MEASURED
    assert believed <= 1


def test_where_runs_differ_less_is_believed_and_the_rest_is_doubt() -> None:
    alike = to_come([slowing(3.0)] * 4)
    apart = to_come([slowing(1.0), slowing(1.0), slowing(6.0), slowing(6.0)])
    assert 1.0 < apart.ratio < alike.ratio
    assert apart.doubt > 2.0 * alike.doubt


def test_after_the_change_the_pace_goes_on_as_it_is_measured() -> None:
    """Once the speed rests on steps from behind the change."""
    parts = Measured(np.array([150.0, 170.0]), np.array([170.0, 190.0]), np.ones(2))
    assert course_to_come([slowing()] * 3, 190.0, 300.0, parts, lambda _: SIGMA) == AS_MEASURED


def test_beyond_the_end_of_ended_runs_their_last_pace_holds() -> None:
    assert to_come([slowing()] * 8, total=3000.0).ratio == pytest.approx(3.5, rel=0.05)


@given(st.floats(1e-3, 1e3), st.integers(1, 16), st.floats(1.0, 200.0), st.floats(1.0, 1e4))
def test_even_runs_change_nothing(each: float, n_runs: int, step: float, left: float) -> None:
    course = slowing(1.0, each=each)
    assert course_to_come([course] * n_runs, step, step + left, measured(step), lambda _: SIGMA) == AS_MEASURED


def test_without_ended_runs_or_steps_nothing_changes() -> None:
    assert to_come([]) == AS_MEASURED
    assert to_come([slowing()], step=50.0, total=50.0) == AS_MEASURED


@given(st.lists(courses(), min_size=1, max_size=8), st.floats(1.0, 400.0), st.floats(0.5, 1e5))
def test_the_order_of_runs_and_the_unit_of_time_do_not_matter(runs: list[RunCourse], step: float, left: float) -> None:
    found = to_come(runs, step, step + left)
    backwards = to_come(runs[::-1], step, step + left)
    assert (backwards.ratio, backwards.doubt) == (found.ratio, found.doubt)
    slower = to_come([run._replace(seconds=run.seconds * 64.0) for run in runs], step, step + left)
    assert (slower.ratio, slower.doubt) == pytest.approx((found.ratio, found.doubt), abs=1e-5)
    assert np.allclose(slower.knots, found.knots, rtol=1e-4)


@given(st.lists(courses(), min_size=1, max_size=8), st.floats(1.0, 400.0), st.floats(0.5, 1e5))
def test_steps_of_the_mean_length_increase_and_end_where_the_steps_do(
    runs: list[RunCourse], step: float, left: float
) -> None:
    found = to_come(runs, step, step + left)
    assert 0.0 < found.ratio < math.inf
    assert 0.0 <= found.doubt < 10.0
    assume(found.knots)
    steps, even = np.array(found.knots).T
    assert (np.diff(steps) > 0).all()
    assert (np.diff(even) > 0).all()
    for outside in (step - 1.0, step, step + left, step + left + 1.0):
        assert found.even(outside) == outside
    asked = np.linspace(step, step + left, 100)
    assert (np.diff([found.even(each) for each in asked]) > 0).all()


def test_steps_count_by_how_long_they_are_to_take() -> None:
    found = to_come([slowing()] * 16)
    part = (found.even(120.0) - 50.0) / 250.0
    assert part == pytest.approx(70 * 0.1 / (70 * 0.1 + 180 * 0.35), abs=0.02)


@pytest.mark.parametrize(
    ("step", "left"), [(1e13, 1.0), (1e13, 1e13), (2.0**60, 2.0**60), (300.0, 1e300), (1e15, 16.0)]
)
def test_absurd_steps_are_no_error(step: float, left: float) -> None:
    found = course_to_come([slowing()], step, step + left, measured(step), lambda _: SIGMA)
    assert 0.0 < found.ratio < math.inf


def test_absurd_paces_are_no_error() -> None:
    assert RunCourse.of([5.0, 1e300], [1e300, 1e-300]) is None
    extreme = RunCourse.of([5.0, 15.0], [1e-290, 1e290])
    assert extreme is not None
    found = course_to_come([extreme], 4.0, 400.0, measured(4.0), lambda _: SIGMA)
    assert 1.0 < found.ratio < 1000.0
