"""Intervals are widened and narrowed by how earlier ones turned out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.calibration import AS_PREDICTED, Judged, Widening, widening

REACH = 1.2816
SCORES = st.lists(st.floats(-20.0, 20.0), max_size=100)


def promised(error: float, half_width: float = 0.2) -> Judged:
    return Judged(error, half_width, half_width)


def draws(n: int, spread: float, random: np.random.Generator) -> list[Judged]:
    """Promises of half-width 0.2 whose errors are `spread` times as large as they say."""
    return [promised(float(error)) for error in random.normal(0.0, 0.2 / REACH * spread, n)]


def held_in_time_order(promises: list[Judged]) -> float:
    """Part of the promises, each widened by those before it, that hold; the first 40 are for learning."""
    held = []
    for n, each in enumerate(promises):
        by = widening(promises[:n])
        held.append(-by.down <= each.score <= by.up)
    return float(np.mean(held[40:]))


def test_without_promises_nothing_changes() -> None:
    assert widening([]) == AS_PREDICTED
    assert widening([], Widening(2.0, 0.5)) == Widening(2.0, 0.5)


def test_few_promises_change_next_to_nothing() -> None:
    by = widening([promised(0.25)])
    assert by.up == pytest.approx(1.15, abs=0.15)
    assert by.down == pytest.approx(1.0, abs=0.15)


def test_one_job_changes_little_however_often_it_was_predicted_wrongly() -> None:
    """Its promises err together: five that came ten times as late are one job, not five."""
    by = widening([promised(2.3)] * 5, shares=[0.2] * 5)
    assert 1.0 <= by.up < 1.6
    assert by.down == pytest.approx(1.0, abs=0.1)
    assert widening([promised(2.3)] * 15, shares=[0.2] * 15).up > 3.0


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0, 3.0])
def test_intervals_of_a_wrong_width_hold_four_fifths_after_a_while(spread: float) -> None:
    found = [held_in_time_order(draws(240, spread, np.random.default_rng(seed))) for seed in range(5)]
    assert 0.74 <= np.mean(found) <= 0.85


def test_intervals_hold_again_after_a_change() -> None:
    """Errors become three times as large in the middle: as it was 45 % would hold."""
    random = np.random.default_rng(3)
    promises = draws(150, 1.0, random) + draws(250, 3.0, random)
    held = []
    for n in range(270, len(promises)):
        by, each = widening(promises[:n]), promises[n]
        held.append(-by.down <= each.score <= by.up)
    assert np.mean(held) > 0.70
    assert np.mean([abs(each.score) <= 1 for each in promises[270:]]) < 0.5


def test_each_side_is_judged_by_itself() -> None:
    """All ends came later than predicted."""
    by = widening([promised(abs(float(error))) for error in np.random.default_rng(1).normal(0.0, 0.5, 100)])
    assert by.up > 2.0
    assert by.down < 1.0


def test_a_task_of_which_little_is_known_is_as_all_tasks_together() -> None:
    installation = Widening(1.5, 2.5)
    by = widening([promised(0.0)] * 3, installation)
    assert by.up == pytest.approx(2.5, rel=0.15)
    assert by.down == pytest.approx(1.5, rel=0.15)


@given(SCORES)
def test_factors_are_bounded_and_depend_on_scores_alone(scores: list[float]) -> None:
    by = widening([promised(0.2 * score) for score in scores])
    assert 0.4 <= by.down <= 5.0
    assert 0.4 <= by.up <= 5.0
    assert widening([promised(0.7 * score, 0.7) for score in scores]) == pytest.approx(by)


@given(SCORES, st.floats(0.0, 20.0))
def test_a_later_end_never_narrows_the_upper_side(scores: list[float], later: float) -> None:
    before = widening([promised(0.2 * score) for score in [*scores, 0.0]])
    after = widening([promised(0.2 * score) for score in [*scores, later]])
    assert after.up >= before.up - 1e-9


def test_judged_by_logarithms() -> None:
    judged = Judged.of(true=200.0, mean=100.0, low=50.0, high=150.0)
    assert judged is not None
    assert judged.error == pytest.approx(math.log(2.0))
    assert judged.score == pytest.approx(math.log(2.0) / math.log(1.5))
    early = Judged.of(true=25.0, mean=100.0, low=50.0, high=150.0)
    assert early is not None
    assert early.score == pytest.approx(-2.0)


@pytest.mark.parametrize(("true", "mean"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, -2.0)])
def test_what_has_no_logarithm_is_not_judged(true: float, mean: float) -> None:
    assert Judged.of(true, mean, 0.5, 2.0) is None


def test_an_interval_without_width_or_bounds_gives_a_finite_score() -> None:
    exact = Judged.of(2.0, 1.0, 1.0, 1.0)
    endless = Judged.of(2.0, 1.0, 0.0, math.inf)
    assert exact is not None
    assert endless is not None
    assert exact.score == pytest.approx(math.log(2.0) / 0.01)
    assert endless.score == 0.0
