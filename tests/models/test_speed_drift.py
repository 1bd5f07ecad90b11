"""Changes of the whole job's speed are found and corrected; nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models import SpeedModel
from optimus_models.history import FloatArray
from optimus_models.speed.measurements import may_have_changed, present_speeds

SIZES = np.array([(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)], dtype=np.float64)


def measured(n_after: int, factor: float, noise: float = 0.02, seed: int = 0) -> tuple[FloatArray, ...]:
    """Workers, servers, speeds, times: four measurements a size, then `n_after` at the last, `factor` times slower."""
    places = np.concatenate([np.repeat(np.arange(5), 4), np.full(n_after, 4)])
    w, p = SIZES[places].T
    slower = np.where(np.arange(len(places)) >= 20, factor, 1.0)
    jitter = np.exp(np.random.default_rng(seed).normal(0.0, noise, len(places)))
    speeds: FloatArray = jitter / (1.0 / w + 0.1 + 0.2 * w / p) / slower
    return w, p, speeds, 60.0 * np.arange(len(places), dtype=np.float64)


def fitted(w: FloatArray, p: FloatArray, speeds: FloatArray, at: FloatArray) -> SpeedModel:
    """As in a round."""
    present = present_speeds(w, p, speeds, at)
    return SpeedModel.fit(w, p, present.speeds, weights=present.weights)


@pytest.mark.parametrize("factor", [2.0, 3.0, 0.5])
def test_after_a_change_all_sizes_are_predicted_at_the_present_speed(factor: float) -> None:
    w, p, speeds, at = measured(3, factor)
    model = fitted(w, p, speeds, at)
    true = 1.0 / (1.0 / SIZES[:, 0] + 0.1 + 0.2 * SIZES[:, 0] / SIZES[:, 1]) / factor
    np.testing.assert_allclose(model.predict(SIZES[:, 0], SIZES[:, 1]), true, rtol=0.15)


@given(st.integers(0, 200), st.integers(0, 8), st.floats(0.0, 0.04))
def test_without_a_change_measurements_are_left_alone(seed: int, n_after: int, noise: float) -> None:
    w, p, speeds, at = measured(n_after, 1.0, noise, seed)
    present = present_speeds(w, p, speeds, at)
    np.testing.assert_allclose(present.speeds, speeds)
    assert np.all(present.weights == 1.0)


@given(st.lists(st.floats(1e-3, 1e3) | st.floats(1.0, 1.3), min_size=1, max_size=8))
def test_speeds_of_one_size_that_are_too_close_for_a_change_have_none(speeds: list[float]) -> None:
    one = np.ones(len(speeds))
    found = present_speeds(one, one, np.array(speeds), np.arange(len(speeds), dtype=np.float64))
    assert may_have_changed(np.array(speeds)) or (found.weights == 1.0).all()


def test_one_slow_interval_is_no_change() -> None:
    w, p, speeds, at = measured(1, 3.0)
    np.testing.assert_allclose(present_speeds(w, p, speeds, at).speeds, speeds)


def test_after_a_slow_stretch_that_is_over_the_old_measurements_hold() -> None:
    w, p, speeds, at = (np.concatenate([part, part[-4:]]) for part in measured(4, 2.5))
    at = 60.0 * np.arange(len(at), dtype=np.float64)
    speeds[-4:] *= 2.5
    now, before = fitted(w, p, speeds, at), SpeedModel.fit(*measured(0, 1.0)[:3])
    np.testing.assert_allclose(now.predict(*SIZES.T), before.predict(*SIZES.T), rtol=0.1)


def test_a_new_size_alone_tells_of_no_change() -> None:
    """Nobody can tell a slow size from a slow cluster there."""
    w, p, speeds, at = measured(0, 1.0)
    speeds[-4:] /= 3.0
    np.testing.assert_allclose(present_speeds(w, p, speeds, at).speeds, speeds)


any_float = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(any_float, any_float, any_float, any_float), max_size=20))
def test_any_measurements_give_a_usable_model(rows: list[tuple[float, ...]]) -> None:
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), 4).T
    model = fitted(columns[0], columns[1], columns[2], columns[3])
    assert np.all(np.isfinite(model.predict([1.0, 4.0], [1.0, 2.0])))


def test_the_shortest_column_decides() -> None:
    w, p, speeds, _ = measured(3, 2.0)
    whole = SpeedModel.fit(w[:20], p[:20], speeds[:20])
    cut = SpeedModel.fit(w, p, speeds, weights=np.ones(20))
    np.testing.assert_allclose(whole.predict([2.0], [2.0]), cut.predict([2.0], [2.0]))
