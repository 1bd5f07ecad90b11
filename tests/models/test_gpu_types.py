"""Speeds on GPU types that a job never ran on."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.gpu_types import MAX_POINTS, GpuTypeModel, JobFeatures, TypeSpeed

TYPES = ["K80", "P100", "V100"]
_LEVELS = {"dense": 4.0, "sparse": 40.0}
_GAINS = {"dense": (1.0, 4.0, 7.0), "sparse": (1.0, 1.3, 1.1)}
"""Speed by type: dense networks use what a GPU has, sparse ones do not."""


def _job(family: str, batch: int) -> JobFeatures:
    return JobFeatures(f"{family} {batch}", family, batch)


def _speed(family: str, batch: int, gpu_type: str) -> float:
    return float(_LEVELS[family] / batch**0.9 * _GAINS[family][TYPES.index(gpu_type)])


def _table() -> list[TypeSpeed]:
    return [
        TypeSpeed(_job(family, batch), gpu_type, _speed(family, batch, gpu_type))
        for family, batch, gpu_type in product(_LEVELS, (16, 32, 64, 128), TYPES)
    ]


def test_the_family_tells_how_much_a_faster_gpu_helps() -> None:
    measured = [*_table(), TypeSpeed(_job("dense", 48), "K80", 1.0), TypeSpeed(_job("sparse", 48), "K80", 1.0)]
    model = GpuTypeModel.fit(measured)
    assert model.predict(_job("dense", 48), ["V100"])[0] == pytest.approx(7.0, rel=0.1)
    assert model.predict(_job("sparse", 48), ["V100"])[0] == pytest.approx(1.1, rel=0.1)


def test_a_family_never_seen_is_less_certain_than_one_that_was() -> None:
    model = GpuTypeModel.fit([*_table(), TypeSpeed(JobFeatures("new"), "K80", 1.0)])
    widths = [np.log(high / low) for low, high in (_interval(model, "new"), _interval(model, "dense 32", "dense", 32))]
    assert widths[0] > 2 * widths[1]


def _interval(model: GpuTypeModel, name: str, family: str = "", batch: float = 1.0) -> tuple[float, float]:
    low, high = model.predict_interval(JobFeatures(name, family, batch), ["V100"])
    return float(low[0]), float(high[0])


def test_without_any_other_job_the_data_sheets_speak() -> None:
    job = JobFeatures("alone")
    model = GpuTypeModel.fit([TypeSpeed(job, "K80", 10.0)])
    on_p100, on_v100 = model.predict(job, ["P100", "V100"])
    assert 10.0 < on_p100 < on_v100
    low, high = model.predict_interval(job, ["V100"])
    assert low[0] < 20.0 < 60.0 < high[0]


def test_what_was_measured_is_given_back() -> None:
    table = _table()
    model = GpuTypeModel.fit(table)
    for row in table:
        assert model.predict(row.job, [row.gpu_type])[0] == pytest.approx(row.steps_per_second, rel=0.02)


def test_types_are_the_same_in_any_case() -> None:
    model = GpuTypeModel.fit(_table())
    job = _job("dense", 16)
    np.testing.assert_array_equal(model.predict(job, ["v100"]), model.predict(job, ["V100"]))


def test_only_the_newest_measurements_are_kept() -> None:
    rows = [TypeSpeed(JobFeatures(str(index)), "K80", 1.0) for index in range(MAX_POINTS + 50)]
    assert GpuTypeModel.fit(rows).n_points == MAX_POINTS


def test_more_coverage_means_a_wider_interval() -> None:
    model = GpuTypeModel.fit(_table())
    job = JobFeatures("unknown")
    low80, high80 = model.predict_interval(job, TYPES, 0.8)
    low95, high95 = model.predict_interval(job, TYPES, 0.95)
    assert np.all((low95 < low80) & (high80 < high95))


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
KINDS = st.builds(JobFeatures, st.sampled_from("abc"), st.sampled_from(["", "x", "y"]), NUMBERS, NUMBERS)
ROWS = st.builds(TypeSpeed, KINDS, st.sampled_from(["K80", "V100", "something"]), NUMBERS)


@settings(max_examples=50, deadline=None)
@given(st.lists(ROWS, max_size=12), KINDS)
def test_any_measurements_give_finite_ordered_predictions(rows: list[TypeSpeed], job: JobFeatures) -> None:
    model = GpuTypeModel.fit(rows)
    mean = model.predict(job, TYPES)
    low, high = model.predict_interval(job, TYPES)
    assert 0.0 <= model.confidence <= 1.0
    assert (model.n_points == 0) == (model.confidence == 0.0)
    assert np.all(np.isfinite(mean))
    assert np.all((low <= mean) & (mean <= high))
