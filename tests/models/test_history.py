from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.history import MAX_POINTS, LossHistory, replace_outliers

any_float = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(any_float, any_float), max_size=60))
def test_what_comes_out_is_finite_sorted_and_bounded(points: list[tuple[float, float]]) -> None:
    history = LossHistory.of([k for k, _ in points], [loss for _, loss in points])
    assert np.all(np.isfinite(history.losses))
    assert np.all(np.diff(history.steps) > 0)
    assert len(history) <= min(len(points), MAX_POINTS)


def test_a_million_points_become_few_with_the_same_mean() -> None:
    losses = np.random.default_rng(1).normal(2.0, 0.1, 1_000_000)
    history = LossHistory.of(np.arange(1_000_000), losses)
    assert len(history) == MAX_POINTS
    assert history.n_points == 1_000_000
    assert abs(history.losses.mean() - losses.mean()) < 1e-3


def test_after_a_roll_back_the_later_report_of_a_step_counts() -> None:
    history = LossHistory.of([1, 2, 3, 2, 3], [5.0, 4.0, 3.0, 4.5, 3.5])
    assert history.steps.tolist() == [1, 2, 3]
    assert history.losses.tolist() == [5.0, 4.5, 3.5]


def test_a_run_that_ends_in_nan_is_marked() -> None:
    assert not LossHistory.of([1, 2], [1.0, np.nan]).ends_finite
    assert LossHistory.of([1, 2], [np.nan, 1.0]).ends_finite


def test_an_outlier_becomes_the_mean_of_its_neighbours() -> None:
    losses = np.linspace(10.0, 1.0, 10)
    spiked = losses.copy()
    spiked[4] = 50.0
    np.testing.assert_allclose(replace_outliers(spiked), losses)


def test_a_smooth_falling_curve_has_no_outliers() -> None:
    losses = 1.0 / np.arange(1.0, 50.0)
    np.testing.assert_array_equal(replace_outliers(losses), losses)
