from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from optimus_models import PaperSpeedModel, SpeedModel

FloatArray = NDArray[np.float64]
GRID = [(w, p) for w in range(1, 17, 3) for p in range(1, 17, 3)]
W, P = (np.array(axis, dtype=np.float64) for axis in zip(*GRID, strict=True))

# ResNet-50 on the paper's testbed, steps per second (Peng et al., EuroSys 2018, figure 9; read off the drawing).
SYNC_OVER_WORKERS = {
    6: [0.0398, 0.0593, 0.0698, 0.0685, 0.0632, 0.0637, 0.0606, 0.0501, 0.0488],
    12: [0.0445, 0.0646, 0.0831, 0.0855, 0.0854, 0.0884, 0.0858, 0.0813, 0.0736],
    18: [0.0419, 0.0710, 0.0872, 0.0940, 0.1012, 0.0993, 0.1000, 0.0963, 0.0920],
}
ASYNC_OVER_WORKERS = {
    6: [0.381, 0.650, 0.855, 0.954, 1.084, 1.101, 1.119, 1.104, 1.128, 1.118],
    12: [0.415, 0.692, 0.947, 1.112, 1.287, 1.531, 1.670, 1.800, 1.854, 1.914],
    18: [0.428, 0.740, 1.007, 1.220, 1.443, 1.655, 1.851, 1.924, 2.098, 2.255],
}
PAPER_BATCH = 40


def points(by_servers: dict[int, list[float]]) -> tuple[FloatArray, FloatArray, FloatArray]:
    rows = [(2 * (i + 1), p, f) for p, speeds in by_servers.items() for i, f in enumerate(speeds)]
    w, p, f = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    return w, p, f


def mean_error(model: SpeedModel, w: FloatArray, p: FloatArray, f: FloatArray) -> float:
    return float(np.mean(np.abs(model.predict(w, p) / f - 1.0)))


def sync_speed(theta: Any, w: FloatArray, p: FloatArray, *, flat: bool = False, batch: float = 64) -> FloatArray:
    transfer = np.maximum(w / p, 1.0) if flat else w / p
    speed: FloatArray = 1.0 / (theta[0] * batch / w + theta[1] + theta[2] * transfer + theta[3] * w + theta[4] * p)
    return speed


thetas = st.tuples(
    st.floats(0.005, 0.1), st.floats(0.01, 0.5), st.floats(0.01, 1.0), st.floats(0.0, 0.05), st.floats(0.0, 0.05)
)


@given(thetas, st.booleans())
@settings(max_examples=50)
def test_plain_fits_recover_the_paper_form(theta: tuple[float, ...], is_async: bool) -> None:
    mode: Literal["sync", "async"] = "async" if is_async else "sync"
    clean = W / (theta[1] + theta[2] * W / P + theta[3] * W + theta[4] * P) if is_async else sync_speed(theta, W, P)
    model = PaperSpeedModel.fit(W, P, clean, mode=mode, global_batch_size=64)
    np.testing.assert_allclose(list(model.coefficients.values()), theta[is_async:], rtol=1e-4, atol=1e-6)


@given(thetas, st.booleans())
@settings(max_examples=50)
def test_auto_is_close_with_plenty_of_points(theta: tuple[float, ...], flat: bool) -> None:
    clean = sync_speed(theta, W, P, flat=flat)
    model = SpeedModel.fit(W, P, clean, global_batch_size=64)
    assert mean_error(model, W, P, clean) < 0.03


@pytest.mark.parametrize("flat", [True, False])
def test_the_communication_term_is_chosen_by_evidence(flat: bool) -> None:
    clean = sync_speed((0.01, 0.05, 1.0, 0.002, 0.002), W, P, flat=flat)
    assert SpeedModel.fit(W, P, clean, global_batch_size=64).form.terms == ("flat" if flat else "shared")


def test_paced_links_show_the_flat_term() -> None:
    """Nine measured points of a flat-sharded server with paced links (milliseconds per step)."""
    pairs = list(itertools.product([1, 2, 4], [1, 2, 4]))
    milliseconds = np.array([332, 346, 358, 671, 350, 360, 1339, 682, 362])
    w, p = (np.array(axis, dtype=np.float64) for axis in zip(*pairs, strict=True))
    model = SpeedModel.fit(w, p, 1000.0 / milliseconds, global_batch_size=64)
    assert model.form.terms == "flat"
    assert mean_error(model, w, p, 1000.0 / milliseconds) < 0.06


@pytest.mark.parametrize(
    ("data", "mode", "limit"), [(SYNC_OVER_WORKERS, "sync", 0.05), (ASYNC_OVER_WORKERS, "async", 0.06)]
)
@pytest.mark.parametrize("kind", [PaperSpeedModel, SpeedModel])
def test_the_testbed_of_the_paper_is_described(data: Any, mode: Any, limit: float, kind: type[SpeedModel]) -> None:
    w, p, f = points(data)
    model = kind.fit(w, p, f, mode=mode, global_batch_size=PAPER_BATCH)
    assert mean_error(model, w, p, f) < limit


def test_ten_random_points_of_the_testbed_predict_the_rest() -> None:
    """Figure 8 reports 4.47 % after ten synchronous samples."""
    w, p, f = points(SYNC_OVER_WORKERS)
    random = np.random.default_rng(8)
    errors = []
    for _ in range(50):
        chosen = np.zeros(len(w), dtype=bool)
        chosen[random.choice(len(w), 10, replace=False)] = True
        model = SpeedModel.fit(w[chosen], p[chosen], f[chosen], global_batch_size=PAPER_BATCH)
        errors.append(mean_error(model, w[~chosen], p[~chosen], f[~chosen]))
    assert np.mean(errors) < 0.05


def test_the_best_split_of_twenty_tasks_is_that_of_the_paper() -> None:
    """Figure 4(a): of 20 containers, 8 workers and 12 servers are fastest."""
    w, p, f = points(SYNC_OVER_WORKERS)
    model = SpeedModel.fit(w, p, f, global_batch_size=PAPER_BATCH)
    workers = np.arange(1, 20)
    best = int(workers[np.argmax(model.predict(workers, 20 - workers))])
    assert 7 <= best <= 10


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_measurement_is_met_and_extrapolated_with_care(mode: Any) -> None:
    model = SpeedModel.fit([2], [2], [10.0], mode=mode, global_batch_size=128)
    here, more, many = model.predict([2, 4, 8], [2, 4, 8])
    assert here == pytest.approx(10.0, rel=1e-6)
    assert 10.0 < more < 20.0
    assert many < 40.0
    low, high = model.predict_interval([2, 16], [2, 16])
    assert high[1] / low[1] > high[0] / low[0]


def test_measurements_overrule_the_prior() -> None:
    w = np.array([1.0, 2.0, 3.0, 4.0] * 3)
    slower_with_workers = 1.0 / (1.0 + 0.5 * w)
    model = SpeedModel.fit(w, np.ones_like(w), slower_with_workers, global_batch_size=64)
    assert np.all(np.diff(model.predict([1, 2, 3, 4], 1)) < 0)


def test_repeats_at_one_size_leave_the_rest_uncertain() -> None:
    once, often = (SpeedModel.fit([4] * n, [2] * n, [5.0] * n, global_batch_size=64) for n in (1, 500))
    assert often.n_points == once.n_points == 1
    np.testing.assert_allclose(often.predict([1, 8], [1, 8]), once.predict([1, 8], [1, 8]), rtol=0.05)


def test_recent_measurements_may_weigh_more() -> None:
    speeds = [10.0] * 10 + [5.0] * 10
    weights = 0.5 ** np.arange(19, -1, -1.0)
    model = SpeedModel.fit([2] * 20, [1] * 20, speeds, weights=weights)
    assert model.predict(2, 1)[0] == pytest.approx(5.0, rel=0.01)


def test_a_stalled_interval_does_not_move_the_model() -> None:
    model = SpeedModel.fit([2] * 5, [1] * 5, [10.0, 10.1, 0.01, 9.9, 10.0])
    assert model.predict(2, 1)[0] == pytest.approx(10.0, rel=0.02)


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=True, allow_infinity=True) | st.integers(-2, 40),
            st.floats(allow_nan=True, allow_infinity=True) | st.integers(-2, 40),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=20,
    ),
    st.sampled_from(["sync", "async"]),
    st.sampled_from([SpeedModel, PaperSpeedModel]),
)
@settings(max_examples=150)
def test_no_data_makes_it_raise(
    rows: list[tuple[float, float, float, float]], mode: Any, kind: type[SpeedModel]
) -> None:
    w, p, f, v = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    model = kind.fit(w, p, f, weights=v, mode=mode)
    predicted = model.predict([1, 4, 16], [1, 4, 16])
    assert np.all(predicted > 0)
    assert np.all(np.isfinite(predicted))
    assert 0.0 <= model.confidence <= 1.0
    assert min(model.coefficients.values()) >= 0
