"""Intervals are corrected by how earlier ones turned out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.calibration import AS_PREDICTED, Errors, Judged, Predicted, Widening

REACH = 1.2816
HALF_WIDTH = 0.2
SAID = Predicted(100.0, 100.0 * math.exp(-HALF_WIDTH), 100.0 * math.exp(HALF_WIDTH))
ERRORS = st.lists(st.floats(-4.0, 4.0), max_size=100)


def judged(error: float, job: str, task: str = "a", life: float = 0.5, said: Predicted = SAID) -> Judged:
    found = Judged.of(job, task, life, said, said.mean * math.exp(error))
    assert found is not None
    return found


def errors_of(errors: list[float], task: str = "a", life: float = 0.5) -> list[Judged]:
    """Each of another job."""
    return [judged(error, f"{task}-{n}", task, life) for n, error in enumerate(errors)]


def by(predictions: list[Judged], task: str = "a", life: float = 0.5, *, moves: bool = False) -> Widening:
    return Errors(predictions).widening(task, life, SAID, moves=moves)


def draws(n: int, spread: float, random: np.random.Generator) -> list[float]:
    """Errors that are `spread` times as large as the prediction says."""
    return [float(error) for error in random.normal(0.0, HALF_WIDTH / REACH * spread, n)]


def held_in_time_order(errors: list[float]) -> float:
    """Part of the predictions, each corrected by those before it, that hold; the first 40 are for learning."""
    predictions, held = errors_of(errors), []
    for n, error in enumerate(errors):
        found = by(predictions[:n])
        held.append(-found.down * HALF_WIDTH <= error <= found.up * HALF_WIDTH)
    return float(np.mean(held[40:]))


def test_without_predictions_nothing_changes() -> None:
    assert by([]) == AS_PREDICTED


@pytest.mark.parametrize("error", [-0.1, -0.01, 0.0, 0.01, 0.1])
def test_a_prediction_unlike_the_next_one_changes_nothing(error: float) -> None:
    """Of another task and another part of life: it weighs next to nothing, and the prediction stays as it is."""
    found = by([judged(error, "one", "b", life=0.1)], life=0.75)
    assert (found.down, found.up) == pytest.approx((1.0, 1.0), abs=0.03)


def test_few_predictions_change_next_to_nothing() -> None:
    found = by(errors_of([0.25]))
    assert found.up == pytest.approx(1.15, abs=0.2)
    assert found.down == pytest.approx(1.0, abs=0.2)


@given(
    error=st.floats(-1e9, 1e9).filter(lambda error: abs(error) > 1.0),
    lives=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40),
    moves=st.booleans(),
)
def test_one_job_never_moves_a_bound_far_however_absurd_it_was(error: float, lives: list[float], moves: bool) -> None:
    """Whatever it reported, and however often it was predicted: it counts as one job."""
    absurd = math.exp(min(max(error, -700.0), 600.0))
    predictions = [each for life in lives if (each := Judged.of("one", "a", life, SAID, absurd)) is not None]
    found = by(predictions, moves=moves)
    assert abs(found.shift) <= HALF_WIDTH
    assert found.up <= 1.5
    assert found.down <= 1.5


def test_several_jobs_that_erred_alike_do() -> None:
    assert by(errors_of([2.0] * 15)).up > 3.0


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0, 3.0])
def test_intervals_of_a_wrong_width_hold_four_fifths_after_a_while(spread: float) -> None:
    found = [held_in_time_order(draws(240, spread, np.random.default_rng(seed))) for seed in range(5)]
    assert 0.73 <= np.mean(found) <= 0.88


def test_each_side_is_judged_by_itself() -> None:
    """All ends came later than predicted."""
    found = by(errors_of([abs(error) for error in draws(100, 4.0, np.random.default_rng(1))]))
    assert found.up > 2.0
    assert found.down < 1.0


def test_the_middle_moves_where_it_may() -> None:
    late = errors_of([math.log(2.0)] * 60)
    assert by(late, moves=True).shift == pytest.approx(math.log(2.0))
    assert by(late).shift == 0.0


def test_another_part_of_life_is_judged_by_itself() -> None:
    late = errors_of([1.0] * 60, life=0.1)
    assert by(late, life=0.1).up > 3.0
    assert by(late, life=0.9).up < 1.5


def test_predictions_that_were_less_sure_say_little() -> None:
    vague = Predicted(100.0, 1.0, 1e4)
    known = [judged(3.0, f"job-{n}", said=vague) for n in range(60)]
    assert by(known).up < 2.0


def test_a_task_of_which_little_is_known_is_as_all_tasks_together() -> None:
    others = errors_of([0.6] * 60, "b")
    assert by(others).up > 2.0
    own = errors_of(draws(100, 1.0, np.random.default_rng(2)))
    assert by([*others, *own]).up < 2.0


def test_where_predictions_of_all_tasks_were_surer_than_they_said_those_of_a_task_soon_are() -> None:
    others = errors_of(draws(200, 0.4, np.random.default_rng(3)), "b")
    own = errors_of(draws(15, 0.4, np.random.default_rng(4)))
    assert by(others).up < 0.6
    assert by([*others, *own]) == pytest.approx(Widening(0.5, 0.5), abs=0.1)
    doubtful = errors_of(draws(200, 2.0, np.random.default_rng(3)), "b")
    assert by(doubtful).up > 1.2


@given(errors=ERRORS, down=st.floats(0.0, 8.0), up=st.floats(0.0, 8.0), moves=st.booleans())
def test_bounds_stay_in_order(errors: list[float], down: float, up: float, moves: bool) -> None:
    said = Predicted(100.0, 100.0 * math.exp(-down), 100.0 * math.exp(up))
    found = Errors(errors_of(errors)).widening("a", 0.5, said, moves=moves)
    assert all(math.isfinite(each) for each in found)
    assert found.down > 0
    assert found.up > 0
    assert moves or found.shift == 0


@given(errors=ERRORS, later=st.floats(0.0, 4.0))
def test_a_later_end_never_narrows_the_upper_side(errors: list[float], later: float) -> None:
    before, after = (by(errors_of([*errors, last])) for last in (0.0, later))
    assert after.up >= before.up - 1e-9


@given(error=st.floats(-2.0, 2.0), correction=st.tuples(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.floats(-2.0, 2.0)))
def test_a_corrected_prediction_is_judged_as_it_was_before(
    error: float, correction: tuple[float, float, float]
) -> None:
    """Else corrections would fall back as soon as they help."""
    applied = Widening(*correction)
    mean = SAID.mean * math.exp(applied.shift)
    shown = Predicted(mean, mean * math.exp(-SAID.down * applied.down), mean * math.exp(SAID.up * applied.up))
    found = judged(error, "one", said=shown.uncorrected(applied))
    assert shown.uncorrected(applied) == pytest.approx(SAID)
    assert found.error == pytest.approx(error)


@pytest.mark.parametrize(("true", "mean"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, -2.0)])
def test_what_has_no_logarithm_is_not_judged(true: float, mean: float) -> None:
    assert Judged.of("one", "a", 0.5, Predicted(mean, 0.5, 2.0), true) is None


def test_an_interval_without_width_or_bounds_is_corrected_to_something_finite() -> None:
    known = Errors(errors_of(draws(60, 3.0, np.random.default_rng(3))))
    assert known.widening("a", 0.5, Predicted(1.0, 1.0, 1.0))[:2] == (1.0, 1.0)
    assert known.widening("a", 0.5, Predicted(1.0, 0.0, math.inf))[:2] == (1.0, 1.0)
