"""The bounded record of a running job's losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.history import MAX_LOSS_POINTS, LossBuckets, LossHistory


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0.01, 10), st.integers(0, 64)), min_size=1, max_size=300),
    st.integers(1, 20),
)
def test_long_histories_are_averaged(points: Sequence[tuple[int, float, int]], max_points: int) -> None:
    losses = LossBuckets(max_points)
    for step, loss, n_examples in points:
        losses.add(step, loss, n_examples)
    steps, means = losses.points()
    assert 1 <= len(steps) <= max_points
    assert all(earlier < later for earlier, later in pairwise(steps))
    assert min(step for step, _, _ in points) <= steps[0] + 1e-6
    assert steps[-1] <= max(step for step, _, _ in points) + 1e-6
    assert all(min(loss for _, loss, _ in points) - 1e-9 <= mean <= 10 + 1e-9 for mean in means)


def test_a_curve_keeps_its_shape_when_averaged() -> None:
    losses = LossBuckets()
    for step in range(1, 10_001):
        losses.add(step, 1 / step, 1)
    steps, means = losses.points()
    assert MAX_LOSS_POINTS / 2 <= len(steps) <= MAX_LOSS_POINTS
    assert all(abs(mean * step - 1) < 0.05 for step, mean in zip(steps[5:], means[5:], strict=True))


def test_losses_that_are_not_finite_survive_only_alone() -> None:
    losses = LossBuckets(max_points=4)
    for step, loss in enumerate([1.0, math.nan, 3.0, 3.0, math.inf, math.inf, math.nan, math.nan]):
        losses.add(step, loss, 1)
    steps, means = losses.points()
    assert steps == (0.5, 2.5, 4.5, 6.5)
    assert means[:2] == (1.0, 3.0)
    assert means[2] == math.inf
    assert math.isnan(means[3])


@given(st.permutations(list(range(60))), st.integers(4, 16))
def test_the_order_of_arrival_hardly_matters(order: Sequence[int], max_points: int) -> None:
    """Reports of many ranks come mixed; which buckets there are depends on the steps alone."""
    mixed, sorted_ = LossBuckets(max_points), LossBuckets(max_points)
    for step in order:
        mixed.add(step, float(step**2))
    for step in range(60):
        sorted_.add(step, float(step**2))
    np.testing.assert_allclose(mixed.arrays(), sorted_.arrays())


def test_steps_after_a_roll_back_are_forgotten() -> None:
    losses = LossBuckets()
    for step in range(1, 11):
        losses.add(step, 9.0)
    losses.roll_back(6)
    losses.add(7, 1.0)
    assert losses.points() == ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), (*[9.0] * 6, 1.0))


def test_a_million_steps_take_the_room_of_a_few() -> None:
    losses = LossBuckets()
    for step in range(0, 1_000_000, 100):
        losses.add(step, 1.0)
    history = LossHistory.of(*losses.arrays())
    assert MAX_LOSS_POINTS / 2 <= len(history) <= MAX_LOSS_POINTS
    assert history.last_step > 980_000


def test_losses_beyond_all_numbers_are_merged_without_a_word() -> None:
    """Their sum would overflow, which numpy says on stderr."""
    losses = LossBuckets(4)
    for step in range(64):
        losses.add(step, 1.7e308 if step % 2 else -1.7e308)
    _, means = losses.points()
    assert all(abs(mean) == 1.7e308 for mean in means)


def test_moments_are_those_of_the_points() -> None:
    losses = LossBuckets(4)
    for step in range(16):
        losses.add(step, 1.0, at=1000.0 + 10 * step)
    steps, _ = losses.points()
    assert losses.moments() == tuple(1000.0 + 10 * step for step in steps)
    losses.roll_back(7)
    assert len(losses.moments()) == len(losses.points()[0])


def test_a_record_of_an_older_release_goes_on_with_moments() -> None:
    losses = LossBuckets()
    losses.add(1, 3.0)
    stride, places, table = losses.state()
    restored = LossBuckets.of_state(stride, places, table[:5])
    restored.add(2, 2.0, at=60.0)
    assert restored.points() == ((1.0, 2.0), (3.0, 2.0))
    assert math.isnan(restored.moments()[0])
    assert restored.moments()[1] == 60.0


def test_points_are_the_very_same_until_something_is_told() -> None:
    buckets = LossBuckets(max_points=4)
    for step in range(1, 9):
        buckets.add(step, 1.0 / step)
        assert buckets.points() is buckets.points()
        assert buckets.points() == tuple(tuple(each.tolist()) for each in buckets.arrays())
    buckets.roll_back(4)
    assert buckets.points() == tuple(tuple(each.tolist()) for each in buckets.arrays())
