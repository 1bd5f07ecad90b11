"""The all-reduce speed model: finds the parameters that made the data, knows limits, survives anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from optimus_models.speed import allreduce_form
from optimus_models.speed.allreduce_form import SCHEMES, AllReduceForm, fit_form
from optimus_models.speed.allreduce_model import AllReduceModel
from optimus_models.speed.allreduce_points import AllReducePoints

FloatArray = NDArray[np.float64]

SIZES = np.array(
    [(n, w, m) for m in (16.0, 64.0) for n, w in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 4), (4, 16), (8, 32))]
)


def _ring_seconds(sizes: FloatArray, *, sigma_inter: float = 0.2, gamma: float = 1.5) -> FloatArray:
    nodes, workers, batches = sizes.T
    crosses = nodes > 1
    rounds, gradients = 2 * (workers - 1), 2 * (workers - 1) / workers
    exchange = np.where(crosses, 0.004, 0.0005) * rounds + np.where(crosses, sigma_inter, 0.01) * gradients
    seconds: FloatArray = ((0.05 + 0.004 * batches) ** gamma + exchange**gamma) ** (1 / gamma)
    return seconds


def _fit(sizes: FloatArray, seconds: FloatArray, sync: list[float] | None = None) -> AllReduceModel:
    return AllReduceModel.fit(sizes[:, 0], sizes[:, 1], sizes[:, 2], seconds, sync)


def _fitted(**options: float) -> AllReduceModel:
    return _fit(SIZES, _ring_seconds(SIZES, **options))


def test_it_reproduces_a_ring_across_nodes() -> None:
    model = _fitted()
    unseen = np.array([(2.0, 4.0, 32.0), (1.0, 3.0, 32.0), (8.0, 16.0, 64.0)])
    np.testing.assert_allclose(model.predict(*unseen.T), 1 / _ring_seconds(unseen), rtol=0.08)


def test_with_given_scheme_and_much_data_the_parameters_come_back() -> None:
    sizes = np.array([(n, n * g, m) for n in (1, 2, 4, 8) for g in (1, 2, 4) for m in (8.0, 32.0, 128.0)])
    model = AllReduceModel.fit(sizes[:, 0], sizes[:, 1], sizes[:, 2], _ring_seconds(sizes), scheme="ring")
    assert model.coefficients["beta"] == pytest.approx(0.004, rel=0.1)
    assert model.coefficients["sigma_inter"] == pytest.approx(0.2, rel=0.25)
    assert model.coefficients["gamma"] == pytest.approx(1.5, rel=0.2)


def test_crossing_nodes_costs_speed_where_the_network_is_slow() -> None:
    model = _fitted()
    within, across = model.predict([1, 4], [4, 4], [16, 16])
    assert across < 0.8 * within


def test_sync_time_fixes_the_gradient_time_where_steps_alone_cannot() -> None:
    """All measurements with one batch: only the split tells what more examples would cost."""
    sizes = np.array([(2.0, 2.0, 32.0), (4.0, 4.0, 32.0)])
    seconds = np.array([0.5, 0.55])
    blind = _fit(sizes, seconds)
    split = _fit(sizes, seconds, [0.45, 0.5])
    assert split.predict(1, 1, 32)[0] > 2 * blind.predict(1, 1, 32)[0]
    assert split.sync_seconds(2, 2, 32)[0] > blind.sync_seconds(2, 2, 32)[0]


def test_compression_helps_where_bandwidth_binds_and_never_hurts() -> None:
    model = _fitted(sigma_inter=2.0)
    plain, halved = (model.predict([8, 1], [32, 1], [16, 16], compression=c) for c in (1.0, 0.5))
    assert halved[0] > 1.5 * plain[0]
    assert halved[1] == pytest.approx(plain[1])


def test_strong_scaling_ends_and_weak_scaling_goes_on() -> None:
    model = _fitted()
    workers = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    strong = model.predict(workers, workers, 64 / workers)
    weak = model.predict(workers, workers, 64) * 64 * workers  # examples per second
    assert strong[-1] < strong.max() * 1.001
    assert np.all(np.diff(weak) > 0)


def test_points_of_the_same_size_are_merged_to_their_median() -> None:
    points = AllReducePoints.of([1, 1, 1], [2, 2, 2], [8, 8, 8], [1.0, 1.1, 50.0])
    assert len(points) == 1
    assert points.seconds[0] == pytest.approx(1.1)
    assert points.weights[0] == 3.0


def test_more_nodes_than_workers_count_as_one_node_per_worker() -> None:
    model = _fitted()
    np.testing.assert_array_equal(model.predict(9, 4, 16), model.predict(4, 4, 16))


@pytest.mark.parametrize("scheme", [*SCHEMES])
def test_the_slopes_of_the_fit_are_its_derivatives(scheme: str) -> None:
    seconds = _ring_seconds(SIZES)
    points = AllReducePoints.of(SIZES[:, 0], SIZES[:, 1], SIZES[:, 2], seconds, 0.1 * seconds)
    problem = allreduce_form._Problem(points, scheme, 0.3, 32.0)  # type: ignore[arg-type]
    at = np.array([-1.0, -0.5, -5.0, -3.0, -4.0, -1.0, -0.3])
    numeric = np.column_stack(
        [(problem.mismatch(at + h, 0.1) - problem.mismatch(at - h, 0.1)) / 2e-5 for h in 1e-5 * np.eye(7)]
    )
    np.testing.assert_allclose(problem.slopes(at, 0.1), numeric, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(allow_nan=True), st.floats(allow_nan=True), st.floats(allow_nan=True), st.floats(allow_nan=True)
        )
        | st.tuples(st.integers(1, 8), st.integers(1, 64), st.integers(1, 512), st.floats(1e-4, 1e4)),
        max_size=8,
    )
)
def test_any_measurements_give_finite_ordered_predictions(rows: list[tuple[float, float, float, float]]) -> None:
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    model = _fit(table[:, :3], table[:, 3])
    mean = model.predict([1, 1, 16], [1, 8, 64], [1, 32, 512])
    low, high = model.predict_interval([1, 1, 16], [1, 8, 64], [1, 32, 512])
    assert np.all(np.isfinite(mean))
    assert np.all((low > 0) & (low <= mean) & (mean <= high))


def test_a_form_exists_without_measurements() -> None:
    form = fit_form(AllReducePoints.of([], [], [], []), "ring")
    assert isinstance(form, AllReduceForm)
    assert set(form.coefficients()) >= {"alpha", "gamma"}
