"""Eq. 1: fitting it back, and where it reaches a loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.history import FloatArray, LossBatch
from optimus_models.loss.inverse_law import InverseLaw, fit_inverse_laws, step_of_loss

betas = st.tuples(st.floats(0.01, 0.5), st.floats(0.9, 5.0), st.floats(0.0, 0.8))


def fitted_law(steps: FloatArray, losses: FloatArray) -> tuple[InverseLaw, float]:
    """Eq. 1 and the root mean squared residual."""
    one = np.ones(1)
    batch = LossBatch(steps[None], losses[None], np.ones((1, len(steps)), dtype=bool), len(steps) * one, 0 * one, one)
    beta0, beta1, beta2, residual = (float(values[0]) for values in fit_inverse_laws(batch))
    return InverseLaw(beta0, beta1, beta2), residual


def law(beta: tuple[float, float, float]) -> InverseLaw:
    return InverseLaw(*beta)


@settings(max_examples=50)
@given(betas)
def test_noise_free_points_give_the_curve_back(beta: tuple[float, float, float]) -> None:
    steps = np.arange(1.0, 101.0)
    losses = law(beta).loss(steps)
    fitted, residual = fitted_law(steps, losses)
    assert residual < 1e-3
    far = np.array([1.0, 50.0, 100.0, 300.0])
    np.testing.assert_allclose(fitted.loss(far), law(beta).loss(far), rtol=0.01)


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=40))
def test_coefficients_are_never_negative(losses: list[float]) -> None:
    steps = np.arange(1.0, len(losses) + 1)
    fitted, _ = fitted_law(steps, np.array(losses))
    assert min(fitted) >= 0
    assert np.all(np.isfinite(fitted.loss(steps)))


@given(betas, st.floats(0.01, 1.5))
def test_the_target_is_met_at_its_closed_form(beta: tuple[float, float, float], target: float) -> None:
    curve = law(beta)
    step = step_of_loss(curve, target)
    if np.isinf(step):
        assert target <= beta[2]
    elif step > 0:
        assert float(curve.loss(np.array([step]))[0]) == pytest.approx(target, rel=1e-6)
    else:
        assert float(curve.loss(np.array([0.0]))[0]) <= target + 1e-9


def test_a_flat_curve_misses_lower_targets() -> None:
    assert np.isinf(step_of_loss(law((0.0, 2.0, 0.1)), 0.3))


@pytest.mark.parametrize(
    ("beta", "loss_at_end"),
    [
        ((0.0868, 1.206, 0.148), 0.249),
        ((0.2887, 4.973, 0.788), 0.817),
        ((0.1288, 1.824, 0.392), 0.460),
        ((0.1885, 1.113, 0.101), 0.151),
        ((0.0555, 1.121, 0.042), 0.192),
        ((0.3554, 6.837, 0.853), 0.876),
    ],
)
def test_the_curves_of_the_paper_are_fitted_back(beta: tuple[float, float, float], loss_at_end: float) -> None:
    """Figure 5, parameters and end values read off the drawing (k in per cent of progress)."""
    steps = np.arange(1.0, 101.0)
    fitted, _ = fitted_law(steps, law(beta).loss(steps))
    assert fitted == pytest.approx(beta, rel=0.05, abs=0.003)
    assert float(law(beta).loss(np.array([100.0]))[0]) == pytest.approx(loss_at_end, abs=0.001)
