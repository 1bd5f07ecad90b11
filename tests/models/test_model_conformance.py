"""What holds for every model: frozen values, sane confidence, ordered intervals, no exception whatever the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from optimus_models import LossCurve, MetricCurve, PaperLossCurve, PaperSpeedModel, RescaleCost, SpeedModel

FloatArray = NDArray[np.float64]
Bounds = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class ModelCase:
    """One model seen through the same four questions. A data set is one array of measured values."""

    fit: Callable[[FloatArray], Any]
    predict: Callable[[Any], FloatArray]
    interval: Callable[[Any, float], Bounds]
    good: FloatArray


def _axis(values: FloatArray) -> FloatArray:
    return np.arange(1.0, len(values) + 1)


def _loss_case(kind: type[LossCurve]) -> ModelCase:
    at = [1.0, 50.0, 200.0]
    return ModelCase(
        fit=lambda y: kind.fit(_axis(y), y),
        predict=lambda model: model.predict(at),
        interval=lambda model, coverage: model.predict_interval(at, coverage),
        good=1.0 / (0.05 * np.arange(1.0, 61.0) + 1.0) + 0.2,
    )


def _metric_case(best: float | None) -> ModelCase:
    at = [1.0, 50.0, 200.0]
    good = 1.0 / (0.05 * np.arange(1.0, 61.0) + 1.0) + 0.2
    return ModelCase(
        fit=lambda y: MetricCurve.fit(_axis(y), y, best=best),
        predict=lambda model: model.predict(at),
        interval=lambda model, coverage: model.predict_interval(at, coverage),
        good=good if best is None else best - 0.5 * good,
    )


def _speed_case(mode: Any, kind: type[SpeedModel]) -> ModelCase:
    w, p = [1, 2, 4, 8], [1, 2, 2, 8]
    i = np.arange(20)
    workers, servers = 1.0 + i % 8, 1.0 + i % 5
    return ModelCase(
        fit=lambda y: kind.fit(
            1 + np.arange(len(y)) % 8, 1 + np.arange(len(y)) % 5, y, mode=mode, global_batch_size=64
        ),
        predict=lambda model: model.predict(w, p),
        interval=lambda model, coverage: model.predict_interval(w, p, coverage),
        good=workers**0.7 / (1.0 + 0.2 * workers / servers),
    )


def _as_array(bounds: tuple[float, float]) -> Bounds:
    return np.array([bounds[0]]), np.array([bounds[1]])


CASES = {
    "loss-ours": _loss_case(LossCurve),
    "loss-paper": _loss_case(PaperLossCurve),
    "metric-rising": _metric_case(1.0),
    "metric-falling": _metric_case(None),
    "speed-sync-ours": _speed_case("sync", SpeedModel),
    "speed-sync-paper": _speed_case("sync", PaperSpeedModel),
    "speed-async-ours": _speed_case("async", SpeedModel),
    "speed-async-paper": _speed_case("async", PaperSpeedModel),
    "rescale": ModelCase(
        fit=RescaleCost.fit,
        predict=lambda model: np.array([model.predict()]),
        interval=lambda model, coverage: _as_array(model.predict_interval(coverage)),
        good=np.array([0.4, 0.5, 0.3]),
    ),
}

NASTY = {
    "none": [],
    "one": [2.0],
    "one NaN": [np.nan],
    "all NaN": [np.nan] * 20,
    "all infinite": [np.inf, -np.inf] * 10,
    "two": [3.0, 2.0],
    "flat": [1.0] * 50,
    "zero": [0.0] * 50,
    "rising": list(np.linspace(1.0, 9.0, 50)),
    "negative": list(np.linspace(-1.0, -9.0, 50)),
    "diverging": [*np.linspace(3.0, 1.0, 20), 1e12, 1e250, np.inf, np.nan],
    "spiky": [1.0, 1e6, 1.0, 1e-6] * 10,
    "tiny": [1e-290, 5e-291] * 5,
    "huge": [1e300, 1e299] * 5,
    "alternating sign": [1.0, -1.0] * 10,
    "reset": [*np.linspace(3.0, 1.0, 20), *np.linspace(3.0, 1.0, 20)],
}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> ModelCase:
    return CASES[request.param]


@pytest.mark.parametrize("values", NASTY.values(), ids=NASTY.keys())
def test_any_data_gives_a_usable_model(case: ModelCase, values: list[float]) -> None:
    model = case.fit(np.array(values, dtype=np.float64))
    assert 0.0 <= model.confidence <= 1.0
    assert model.n_points >= 0
    mean = case.predict(model)
    low, high = case.interval(model, 0.8)
    assert not np.any(low > mean)
    assert not np.any(mean > high)
    if model.n_points:
        assert np.all(np.isfinite(mean))


def test_nothing_known_means_no_confidence(case: ModelCase) -> None:
    model = case.fit(np.array([np.nan, np.nan]))
    assert model.n_points == 0
    assert model.confidence == 0.0


def test_good_data_gives_confidence_and_a_narrow_interval(case: ModelCase) -> None:
    model, ignorant = case.fit(case.good), case.fit(case.good[:1])
    assert model.confidence > ignorant.confidence
    assert np.all(np.isfinite(case.interval(model, 0.8)))


def test_more_coverage_means_a_wider_interval(case: ModelCase) -> None:
    model = case.fit(case.good)
    low80, high80 = case.interval(model, 0.8)
    low95, high95 = case.interval(model, 0.95)
    assert np.all(low95 <= low80)
    assert np.all(high80 <= high95)


def test_the_same_data_gives_the_same_model(case: ModelCase) -> None:
    first, second = case.fit(case.good), case.fit(case.good.copy())
    np.testing.assert_array_equal(case.predict(first), case.predict(second))


def test_a_fitted_model_is_frozen(case: ModelCase) -> None:
    model = case.fit(case.good)
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.confidence = 1.0


def test_fitting_leaves_its_input_alone(case: ModelCase) -> None:
    data = case.good.copy()
    case.fit(data)
    np.testing.assert_array_equal(data, case.good)
