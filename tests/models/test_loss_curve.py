from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models import LossCurve
from optimus_models.history import LossHistory
from optimus_models.loss.curve import PaperLossCurve

MakeLosses = Callable[..., Any]
KINDS = (LossCurve, PaperLossCurve)
STEPS = np.arange(1.0, 101.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_generating_parameters_are_found(kind: type[LossCurve], make_losses: MakeLosses) -> None:
    curve = kind.fit(STEPS, make_losses(STEPS))
    scaled = np.array([curve.beta0 / curve.scale, curve.beta1 / curve.scale, curve.beta2 * curve.scale])
    np.testing.assert_allclose(scaled, [0.05, 1.1, 0.15], rtol=0.05)
    assert curve.confidence > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_a_noisy_curve_is_extrapolated(kind: type[LossCurve], make_losses: MakeLosses) -> None:
    losses = make_losses(STEPS, scale=3.0, noise=0.01)
    curve = kind.fit(STEPS[:30], losses[:30])
    assert curve.predict([100.0])[0] == pytest.approx(3.0 * (1 / 6.1 + 0.15), abs=0.2)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=80), st.sampled_from(KINDS))
@settings(max_examples=200)
def test_no_history_makes_it_raise(losses: list[float], kind: type[LossCurve]) -> None:
    curve = kind.fit(np.arange(len(losses)), losses)
    assert 0.0 <= curve.confidence <= 1.0
    assert min(curve.beta0, curve.beta1, curve.beta2) >= 0.0
    assert curve.scale > 0.0
    if curve.n_points:
        assert np.all(np.isfinite(curve.predict([0.0, 10.0, 1e6])))


@given(st.floats(1e-3, 1e3), st.integers(5, 60))
@settings(max_examples=50)
def test_the_unit_of_the_loss_does_not_matter(factor: float, n: int) -> None:
    losses = 1.0 / (0.1 * STEPS[:n] + 1.0) + 0.3
    plain, scaled = LossCurve.fit(STEPS[:n], losses), LossCurve.fit(STEPS[:n], factor * losses)
    np.testing.assert_allclose(scaled.predict([5.0, 500.0]), factor * plain.predict([5.0, 500.0]), rtol=1e-6)
    assert scaled.confidence == pytest.approx(plain.confidence, abs=1e-6)


@given(st.floats(0.01, 1e4), st.integers(5, 60))
@settings(max_examples=50)
def test_the_unit_of_the_step_does_not_matter(factor: float, n: int) -> None:
    losses = 1.0 / (0.1 * STEPS[:n] + 1.0) + 0.3
    plain, scaled = LossCurve.fit(100 * STEPS[:n], losses), LossCurve.fit(100 * factor * STEPS[:n], losses)
    at = np.array([500.0, 50_000.0])
    np.testing.assert_allclose(scaled.predict(factor * at), plain.predict(at), rtol=1e-3)


def test_the_order_of_points_does_not_matter(make_losses: MakeLosses) -> None:
    losses = make_losses(STEPS, noise=0.02)
    shuffled = np.random.default_rng(3).permutation(100)
    first, second = LossCurve.fit(STEPS, losses), LossCurve.fit(STEPS[shuffled], losses[shuffled])
    np.testing.assert_allclose(first.predict([200.0]), second.predict([200.0]))


def test_a_diverged_run_has_no_confidence(make_losses: MakeLosses) -> None:
    losses = make_losses(STEPS)
    losses[-3:] = np.nan
    assert LossCurve.fit(STEPS, losses).confidence == 0.0


def test_a_rising_curve_has_little_confidence() -> None:
    assert LossCurve.fit(STEPS, 1.0 + STEPS / 100).confidence < 0.3


def test_one_point_is_predicted_to_stay() -> None:
    curve = LossCurve.fit([10], [2.5])
    np.testing.assert_allclose(curve.predict([10.0, 1000.0]), 2.5, rtol=1e-6)
    assert curve.confidence < 0.1


def test_negative_losses_are_followed() -> None:
    losses = 2.0 / (0.1 * STEPS + 1.0) - 5.0
    curve = LossCurve.fit(STEPS[:60], losses[:60])
    assert curve.offset < 0
    assert curve.predict([100.0])[0] == pytest.approx(losses[-1], abs=0.1)


def test_the_interval_widens_with_the_horizon(make_losses: MakeLosses) -> None:
    curve = LossCurve.fit(STEPS[:30], make_losses(STEPS, noise=0.02)[:30])
    low, high = curve.predict_interval([30.0, 100.0, 300.0])
    assert np.all(np.diff(high - low) > 0)


histories = st.lists(st.floats(-10.0, 10.0) | st.just(np.nan), max_size=300).map(
    lambda losses: LossHistory.of(np.arange(1, len(losses) + 1), losses)
)


@given(st.lists(histories, max_size=40), st.sampled_from(KINDS))
@settings(max_examples=30, deadline=None)
def test_many_at_once_are_fitted_like_each_by_itself(batch: list[LossHistory], kind: type[LossCurve]) -> None:
    ahead = np.array([1.0, 100.0, 1000.0])
    together = kind.fit_many(batch)
    for history, curve in zip(batch, together, strict=True):
        (alone,) = kind.fit_many([history])
        for name in ("beta0", "beta1", "beta2", "residual", "scale", "offset", "n_points"):
            assert getattr(curve, name) == pytest.approx(getattr(alone, name), rel=1e-6, abs=1e-9), name
        np.testing.assert_allclose(curve.predict(ahead), alone.predict(ahead), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(curve.predict_interval(ahead), alone.predict_interval(ahead), rtol=1e-5, atol=1e-7)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60), st.sampled_from([1.0, -1.0]), st.floats(0.5, 0.99))
@settings(max_examples=100, deadline=None)
def test_bounds_stay_on_the_side_of_zero_of_all_losses(losses: list[float], sign: float, coverage: float) -> None:
    curve = LossCurve.fit(np.arange(1, len(losses) + 1), sign * np.array(losses))
    ahead = np.array([1.0, 50.0, 1e4])
    (low, high), mean = curve.predict_interval(ahead, coverage), curve.predict(ahead)
    assert np.all((low <= mean) & (mean <= high))
    assert np.all(low >= 0.0) if sign > 0 else np.all(high <= np.maximum(mean, 0.0))


def test_a_first_plateau_may_end_in_a_deep_fall() -> None:
    plateau = LossCurve.fit(STEPS[:20], 2.3 + 0.01 * np.cos(5.0 * STEPS[:20]))
    fallen = LossCurve.fit(STEPS[:20], 2.0 + 0.3 / STEPS[:20])
    assert plateau.fall == 0.0 < fallen.fall
    assert plateau.predict_interval([60.0])[0][0] < 0.1
    assert fallen.predict_interval([60.0])[0][0] > 1.0


def test_noise_that_begins_late_widens_the_interval(make_losses: MakeLosses) -> None:
    smooth = make_losses(STEPS, noise=0.0)
    noisy = smooth + np.where(STEPS > 70, 0.1 * np.cos(3.0 * STEPS), 0.0)
    (low, high), (lowest, highest) = (LossCurve.fit(STEPS, each).predict_interval([100.0]) for each in (smooth, noisy))
    assert (highest - lowest)[0] > max(3.0 * (high - low)[0], 0.02)
