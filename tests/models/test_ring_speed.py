"""The speed of all-reduce jobs with a fixed batch, from what a step consists of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.speed.ring import RingSamples, RingSpeed

BATCH = 1024.0


def computing(workers: np.ndarray, batch: float = BATCH) -> np.ndarray:
    """Seconds: a hundredth for 8 examples, and a fixed part."""
    return 0.01 + batch / workers / 800.0


def exchange(workers: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(workers > 1, 0.15 * workers**0.2, 0.0))


def measured(sizes: list[int], batch: float = BATCH, slower: float = 1.0) -> RingSamples:
    w = np.array(sizes, dtype=float)
    return RingSamples(
        w, slower * (computing(w, batch) + exchange(w)), slower * exchange(w), batch, np.ones(len(sizes))
    )


def true_speed(sizes: list[int], batch: float = BATCH) -> np.ndarray:
    w = np.array(sizes, dtype=float)
    return np.asarray(1.0 / (computing(w, batch) + exchange(w)))


def test_goes_through_what_was_measured() -> None:
    speed = RingSpeed.fit(measured([1, 2, 8]))
    np.testing.assert_allclose(speed.predict([1, 2, 8], [0, 0, 0]), true_speed([1, 2, 8]), rtol=0.05)
    assert speed.n_points == 3
    assert speed.error == pytest.approx(0.05, abs=0.01)


def test_two_sizes_tell_the_others() -> None:
    speed = RingSpeed.fit(measured([1, 4]))
    np.testing.assert_allclose(speed.predict([2, 8, 16], [0, 0, 0]), true_speed([2, 8, 16]), rtol=0.35)


def test_a_slow_exchange_is_expected_of_larger_rings_too() -> None:
    """Amdahl's law through the same two speeds would predict more."""
    w = np.array([1.0, 2.0])
    slow = RingSamples(w, [2.0, 2.0], [0.0, 1.0], BATCH)
    fast = RingSamples(w, [2.0, 1.0], [0.0, 0.001], BATCH)
    slow_speedup, fast_speedup = (
        float(model.predict([8], [0])[0] / model.predict([1], [0])[0]) for model in map(RingSpeed.fit, (slow, fast))
    )
    assert slow_speedup < 2.5
    assert fast_speedup > 4.5


def test_jobs_with_another_batch_tell_as_much() -> None:
    others = [measured([1, 2, 4, 8, 16], batch=4 * BATCH), measured([2, 8], batch=4 * BATCH, slower=1.1)]
    informed, alone = RingSpeed.fit(measured([1]), others), RingSpeed.fit(measured([1]))
    sizes = [2, 4, 8, 16]

    def error(model: RingSpeed) -> float:
        return float(np.abs(np.log(model.predict(sizes, sizes) / true_speed(sizes))).max())

    assert error(informed) < 0.15 < error(alone)
    assert informed.confidence > alone.confidence


def test_nothing_measured_but_others() -> None:
    model = RingSpeed.fit(measured([]), [measured([1, 2, 4, 8])])
    assert model.n_points == 0
    np.testing.assert_allclose(model.predict([1, 3, 8], [0, 0, 0]), true_speed([1, 3, 8]), rtol=0.15)


def test_is_less_sure_further_away_and_surer_when_it_knows_more() -> None:
    def width(model: RingSpeed, workers: int) -> float:
        low, high = model.predict_interval([workers], [0])
        return float(np.log(high / low)[0])

    model = RingSpeed.fit(measured([1, 2]))
    assert width(model, 2) < width(model, 8) < width(model, 32)
    assert width(RingSpeed.fit(measured([1, 2, 8])), 8) < width(model, 8)
    low, high = model.predict_interval([4], [0])
    assert low[0] < model.predict([4], [0])[0] < high[0]


def test_faded_measurements_say_less() -> None:
    w, weights = np.array([4.0, 4.0]), np.array([1.0, 0.05])
    faded = RingSpeed.fit(RingSamples(w, [1.0, 2.0], [0.2, 0.4], BATCH, weights))
    even = RingSpeed.fit(RingSamples(w, [1.0, 2.0], [0.2, 0.4], BATCH))
    assert faded.predict([4], [0])[0] == pytest.approx(1.0, rel=0.1)
    assert even.predict([4], [0])[0] == pytest.approx(0.5**0.5, rel=0.1)


def test_nothing_known() -> None:
    model = RingSpeed.fit(measured([]))
    assert (model.n_points, model.confidence) == (0, 0.0)
    assert np.isfinite(model.predict([1, 64], [0, 0])).all()
    assert all(np.isfinite(list(model.coefficients.values())))


figures = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(-2, 100), figures, figures, st.floats(0, 1)), max_size=8), st.booleans())
def test_never_raises_on_data(drawn: list[tuple[int, float, float, float]], is_own: bool) -> None:
    columns = np.array(drawn, dtype=float).reshape(-1, 4).T
    samples = RingSamples(columns[0], columns[1], columns[2], BATCH, columns[3])
    model = RingSpeed.fit(samples) if is_own else RingSpeed.fit(measured([1]), [samples])
    assert (model.predict([1, 7], [0, 0]) > 0).all()
    low, high = model.predict_interval([1, 7], [0, 0])
    assert (low <= high).all()
