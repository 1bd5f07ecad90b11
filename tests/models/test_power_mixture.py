from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.history import FloatArray, LossBatch
from optimus_models.loss.mixture import FAR, NEAR, PowerMixture, fit_power_mixtures

STEPS = np.arange(1.0, 101.0)
unit_losses = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60)


def fitted_mixture(steps: FloatArray, losses: FloatArray) -> PowerMixture:
    """The mixture of one history whose largest loss is 1."""
    one = np.ones(1)
    batch = LossBatch(steps[None], losses[None], np.ones((1, len(steps)), dtype=bool), len(steps) * one, 0 * one, one)
    return fit_power_mixtures(batch)[0]


@given(unit_losses)
@settings(max_examples=100)
def test_predictions_are_finite_and_never_below_zero(losses: list[float]) -> None:
    steps = np.arange(1.0, len(losses) + 1)
    mean, spread = fitted_mixture(steps, np.array(losses)).loss_and_spread(np.geomspace(1.0, 1e7, 50))
    assert np.all(np.isfinite(mean))
    assert np.all(mean >= 0.0)
    assert np.all(spread >= 0.0)


@given(unit_losses)
@settings(max_examples=100)
def test_predictions_never_rise_in_the_near_future_of_any_history(losses: list[float]) -> None:
    last = float(len(losses))
    mixture = fitted_mixture(np.arange(1.0, last + 1), np.array(losses))
    ahead = mixture.loss_and_spread(last * np.linspace(1.0, 1.7, 40))[0]
    assert np.all(np.diff(ahead) <= 1e-9)


@pytest.mark.parametrize("exponent", [NEAR.exponent, FAR.exponent])
def test_a_power_law_is_continued(exponent: float) -> None:
    def truth(steps: np.ndarray) -> np.ndarray:
        falling: np.ndarray = 0.7 * (1.0 + steps / 20.0) ** -exponent + 0.2
        return falling

    mixture = fitted_mixture(STEPS, truth(STEPS))
    ahead = np.array([120.0, 170.0, 400.0])
    np.testing.assert_allclose(mixture.loss_and_spread(ahead)[0], truth(ahead), atol=0.05)


def test_the_curve_goes_through_the_recent_points() -> None:
    losses = np.where(STEPS < 80, 0.8, 0.3)  # a learning rate was lowered
    assert fitted_mixture(STEPS, losses).loss_and_spread(np.array([100.0]))[0][0] == pytest.approx(0.3, abs=0.02)


def test_the_far_curve_takes_over_without_a_jump() -> None:
    mixture = fitted_mixture(STEPS, 1.0 / (0.05 * STEPS + 1.0))
    ahead = mixture.loss_and_spread(np.geomspace(100.0, 2000.0, 2000))[0]
    assert np.max(np.abs(np.diff(ahead))) < 1e-3


def test_curves_disagree_more_the_further_ahead() -> None:
    noise = np.random.default_rng(4).normal(0.0, 0.01, 100)
    _, spread = fitted_mixture(STEPS, 0.8 / (0.05 * STEPS + 1.0) + 0.1 + noise).loss_and_spread(
        np.array([100.0, 170.0, 600.0])
    )
    assert spread[0] < spread[1] < spread[2]


def test_a_loss_that_falls_towards_zero_falls_on_by_the_part_that_it_does() -> None:
    at = np.array([100.0, 130.0, 170.0])  # where the near average is all
    loss, decrease = fitted_mixture(STEPS, STEPS**-1.5).loss_and_decrease(at, 1.0)
    slopes = decrease / loss * at
    assert np.all((slopes > 1.5) & (slopes < 2.5))
