"""How long a size will last: no constant says it, whatever the jobs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.scheduler.builders import NOW, a_job, a_spec, law, samples

from optimus_scheduler.allocate.optimus.arrays import FloatArray
from optimus_scheduler.allocate.optimus.candidates import Candidates, candidates, sizes_of
from optimus_scheduler.allocate.optimus.frontier import Frontiers
from optimus_scheduler.allocate.optimus.horizons import horizons, turnover
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.model import NOTHING, ConvergenceRule, Job, JobState, Resources
from optimus_scheduler.settings import Settings

SETTINGS = Settings()
GIB = 2**30

seconds = st.floats(0.0, 1e9)
ends = st.one_of(seconds, st.just(math.inf), st.just(math.nan))
shares = st.one_of(st.just(0.0), st.floats(1e-9, 1.0))
rows = st.tuples(seconds, seconds, ends, st.booleans(), shares)
"""Age, change, seconds left, whether it is learning, share in use."""


def columns(drawn: list[tuple[float, float, float, bool, float]]) -> list[FloatArray]:
    return [np.array(each, dtype=np.float64) for each in zip(*drawn, strict=True)]


def found(drawn: list[tuple[float, float, float, bool, float]]) -> FloatArray:
    age, change, left, learning, in_use = columns(drawn)
    return horizons(age, change, left, learning > 0, turnover(in_use, left))


@given(st.lists(rows, min_size=1, max_size=20))
def test_a_horizon_is_a_number_above_0_that_no_job_outlives(
    drawn: list[tuple[float, float, float, bool, float]],
) -> None:
    lasts = found(drawn)
    assert not np.isnan(lasts).any()
    assert (lasts > 0).all()
    left = columns(drawn)[2]
    known = ~np.isnan(left)
    assert (lasts[known] <= np.maximum(left[known], 1e-3)).all()


@given(st.lists(rows, min_size=1, max_size=8), st.integers(0, 7), st.floats(0.0, 1e9))
def test_the_longer_it_has_lasted_and_the_dearer_a_change_the_longer_it_lasts(
    drawn: list[tuple[float, float, float, bool, float]], which: int, more: float
) -> None:
    which %= len(drawn)
    before = found(drawn)
    age, change, left, learning, in_use = drawn[which]
    for changed in (
        (age + more, change, left, learning, in_use),
        (age, change + more, left, learning, in_use),
    ):
        after = found([*drawn[:which], changed, *drawn[which + 1 :]])
        assert after[which] >= before[which]
        others = np.arange(len(drawn)) != which
        np.testing.assert_array_equal(after[others], before[others])


ends_known = st.lists(st.tuples(st.floats(1.0, 1e9), st.floats(1e-9, 1.0)), min_size=1, max_size=20)
"""Seconds left and shares in use."""


@given(ends_known, st.floats(1e-3, 1e3))
def test_the_turnover_depends_on_no_unit_of_what_is_in_use(drawn: list[tuple[float, float]], scale: float) -> None:
    left, in_use = (np.array(each) for each in zip(*drawn, strict=True))
    assert turnover(in_use * scale, left) == pytest.approx(turnover(in_use, left))


@given(ends_known, st.integers(2, 8))
def test_a_job_counts_by_what_it_has_and_not_by_its_number_of_tasks(
    drawn: list[tuple[float, float]], parts: int
) -> None:
    """As one job or as several that end together, the turnover is the same."""
    left, in_use = (np.array(each) for each in zip(*drawn, strict=True))
    split = np.concatenate([in_use[:-1], np.full(parts, in_use[-1] / parts)])
    ends = np.concatenate([left[:-1], np.full(parts, left[-1])])
    assert turnover(split, ends) == pytest.approx(turnover(in_use, left))


@given(ends_known)
def test_the_turnover_lies_between_the_first_and_the_last_end(drawn: list[tuple[float, float]]) -> None:
    left, in_use = (np.array(each) for each in zip(*drawn, strict=True))
    assert left.min() * (1 - 1e-9) <= turnover(in_use, left) <= left.max() * (1 + 1e-9)


@given(ends_known, st.floats(1.0, 1e3), st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.booleans())
def test_seconds_or_hours_are_the_same(
    drawn: list[tuple[float, float]], scale: float, age: float, change: float, learning: bool
) -> None:
    """All times so many times as long: so is the horizon."""
    left, in_use = (np.array(each) for each in zip(*drawn, strict=True))
    n = len(left)

    def at(times: float) -> FloatArray:
        ages, changes = np.full(n, age * times), np.full(n, change * times)
        return horizons(ages, changes, left * times, np.full(n, learning), turnover(in_use, left * times))

    assume((at(1.0) > 2e-3).all())
    np.testing.assert_allclose(at(scale), at(1.0) * scale, rtol=1e-9)


def test_stops_of_30_seconds_in_a_cluster_that_turns_over_in_16_minutes() -> None:
    left, learning = np.full(2, 1e6), np.array([True, False])
    lasts = horizons(np.full(2, 100.0), np.full(2, 30.0), left, learning, 960.0)
    assert lasts == pytest.approx([100.0 + 480.0, 100.0 + math.sqrt(2 * 30.0 * 480.0)])


@pytest.mark.parametrize(
    ("in_use", "left"),
    [((), ()), ((0.0, 0.0), (10.0, 20.0)), ((0.5, 0.5), (math.inf, math.nan))],
    ids=["no jobs", "nothing runs", "no end is known"],
)
def test_where_nothing_is_known_to_end_a_size_lasts_to_the_end_of_its_job(
    in_use: tuple[float, ...], left: tuple[float, ...]
) -> None:
    assert turnover(np.array(in_use), np.array(left)) == math.inf
    ends = np.array([50.0, math.inf])
    assert (horizons(np.zeros(2), np.zeros(2), ends, np.full(2, False), math.inf) == ends).all()


def test_a_job_without_a_known_end_frees_nothing() -> None:
    in_use = np.array([0.25, 0.75])
    assert turnover(in_use, np.array([100.0, math.inf])) == pytest.approx(400.0)


# --- in a round


def table(jobs: list[Job], cpu: float = 16.0) -> Candidates:
    outlooks = JobColumns.of(forecast_all(jobs, NOW, SETTINGS))
    frontiers = Frontiers(outlooks, Resources(cpu, 64 * GIB))
    return candidates(outlooks, frontiers, sizes_of(outlooks, SETTINGS), SETTINGS, NOW)


def running(name: str, steps: int, age: float = 60.0) -> Job:
    """Of one step per second on its one worker and one server, with stops of 20 s."""
    speed = law(1.0, 0.0, 0.001, 0.0)
    measured = samples(speed, [(1, 1), (2, 2), (4, 4), (2, 1), (1, 2)])
    spec = a_spec(rule=ConvergenceRule(max_steps=steps))
    job = a_job(name, has=(1, 1), spec=spec, measured=measured, rescale_seconds=(20.0,) * 4)
    return replace(job, allocated_at=NOW - age)


def test_others_that_end_soon_make_a_change_dearer() -> None:
    """The size of a long job is changed again as soon as they free their room."""
    alone = table([running("long", 200_000)])
    beside_long, beside_short = (
        table([running("long", 200_000), *(running(f"other-{number}", steps) for number in range(4))])
        for steps in (150_000, 300)
    )
    assert beside_short.charge[0] > beside_long.charge[0] >= alone.charge[0]


def test_jobs_that_wait_free_nothing() -> None:
    waiting = replace(running("waits", 300), allocation=NOTHING, state=JobState.PAUSED, allocated_at=NOW - 10)
    assert table([running("long", 200_000), waiting]).charge[0] == table([running("long", 200_000)]).charge[0]
