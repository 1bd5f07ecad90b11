"""The curve of speed over workers alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.speed.scaling import ScalingCurve

WORKERS = np.array([1, 2, 4, 8, 16])


def law(workers: np.ndarray, serial: float = 0.1) -> np.ndarray:
    return workers / (1.0 + serial * (workers - 1.0))


def test_goes_through_what_was_measured() -> None:
    curve = ScalingCurve.fit(WORKERS, 3.0 * law(WORKERS))
    np.testing.assert_allclose(curve.predict([2, 8], [0, 0]), 3.0 * law(np.array([2, 8])), rtol=0.05)


def test_interpolates_between_sizes() -> None:
    between = np.array([3, 6, 12])
    curve = ScalingCurve.fit(WORKERS, law(WORKERS))
    np.testing.assert_allclose(curve.predict(between, between), law(between), rtol=0.05)


def test_one_measurement_scales_by_the_prior() -> None:
    one, eight = ScalingCurve.fit([1], [2.0]).predict([1, 8], [0, 0])
    assert one == pytest.approx(2.0, rel=0.02)
    assert 4.0 < eight / one < 8.0


def test_other_jobs_tell_the_shape_and_the_job_itself_the_level() -> None:
    flat = law(WORKERS, serial=0.9)
    alone = ScalingCurve.fit([1], [2.0])
    informed = ScalingCurve.fit([1], [2.0], others=[(WORKERS, flat), (WORKERS, 1.2 * flat)])
    speeds = informed.predict([1, 8], [0, 0])
    assert speeds[0] == pytest.approx(2.0, rel=0.1)
    assert speeds[1] / speeds[0] == pytest.approx(flat[3] / flat[0], rel=0.15)
    assert informed.confidence > alone.confidence


def test_is_less_sure_further_away() -> None:
    low, high = ScalingCurve.fit([1, 2], [1.0, 1.9]).predict_interval([2, 4, 32], [0, 0, 0])
    widths = np.log(high / low)
    assert widths[0] < widths[1] < widths[2]


def test_one_measurement_of_a_size_that_turned_out_slower_corrects_it() -> None:
    """Two and three workers scaled, four share too few cores: the curve cannot follow, and its interval says so."""
    measured = {2: 2.0, 3: 2.8, 4: 1.4}
    before, after = (ScalingCurve.fit(sizes, [measured[w] for w in sizes]) for sizes in ([2, 3], [2, 3, 4]))
    assert before.predict([4], [0])[0] > 3.0
    assert after.predict([4], [0])[0] < after.predict([3], [0])[0]
    low, high = after.predict_interval(list(measured), [0, 0, 0])
    assert (low <= list(measured.values())).all()
    assert (list(measured.values()) <= high).all()


def test_nothing_measured() -> None:
    curve = ScalingCurve.fit([], [])
    assert (curve.n_points, curve.confidence) == (0, 0.0)
    assert np.isfinite(curve.predict([1, 64], [0, 0])).all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-2, 100), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=8,
    )
)
def test_never_raises_on_data(drawn: list[tuple[int, float]]) -> None:
    curve = ScalingCurve.fit([w for w, _ in drawn], [f for _, f in drawn])
    assert (curve.predict([1, 7], [0, 0]) > 0).all()


@pytest.mark.parametrize("factor", [25.0, 4.0, 0.1])
def test_a_job_of_quite_another_speed_is_as_fast_as_it_was_measured(factor: float) -> None:
    """Nine earlier runs of the same file with other arguments; a single step was measured."""
    others = [([1], [1.0 + 0.01 * run]) for run in range(9)]
    curve = ScalingCurve.fit([1], [1.0 / factor], weights=[0.1], others=others)
    assert curve.predict([1], [0])[0] == pytest.approx(1.0 / factor, rel=0.05)


def test_earlier_runs_that_disagree_say_little() -> None:
    alike, unlike = (
        ScalingCurve.fit([], [], others=[([1], [f]) for f in speeds]) for speeds in ([1.0, 1.1], [0.04, 1.1])
    )
    (low,), (high,) = alike.predict_interval([1], [0])
    assert high / low < 2.0
    (low,), (high,) = unlike.predict_interval([1], [0])
    assert low < 0.04 < 1.1 < high
    curve = ScalingCurve.fit([1], [0.3], weights=[0.1], others=[([1], [f]) for f in (0.04, 1.1)])
    assert curve.predict([1], [0])[0] == pytest.approx(0.3, rel=0.05)


def widths(curve: ScalingCurve, workers: list[int]) -> np.ndarray:
    low, high = curve.predict_interval(workers, workers)
    return np.asarray(np.log(high / low))


SPEEDS = st.floats(0.01, 100.0)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(1, 64), SPEEDS, min_size=1, max_size=6), st.integers(1, 128))
def test_an_interval_has_the_mean_in_it_and_grows_with_its_coverage(measured: dict[int, float], workers: int) -> None:
    curve = ScalingCurve.fit(list(measured), list(measured.values()))
    mean, low, high = curve.predict_with_interval([workers], [0])
    _, lower, higher = curve.predict_with_interval([workers], [0], coverage=0.95)
    assert 0 < lower[0] < low[0] < mean[0] < high[0] < higher[0]


def test_sizes_that_lie_further_apart_than_expected_make_others_less_sure() -> None:
    """The same three sizes, once as Amdahl's law has it, once with two workers as slow as one."""
    ahead = [8, 16]
    smooth, jagged = (ScalingCurve.fit([1, 2, 4], speeds) for speeds in ([1.0, 1.9, 3.5], [1.0, 1.0, 3.5]))
    assert (widths(smooth, ahead) < widths(jagged, ahead)).all()


def test_sizes_as_the_law_has_them_make_others_surer() -> None:
    two, three = (ScalingCurve.fit(sizes, law(np.array(sizes), 0.05)) for sizes in ([1, 2], [1, 2, 4]))
    assert (widths(three, [8, 16]) < widths(two, [8, 16])).all()


def test_measuring_the_same_size_again_says_nothing_of_others() -> None:
    once, often = (ScalingCurve.fit([1, *[4] * times], [1.0, *[3.0] * times]) for times in (1, 50))
    np.testing.assert_allclose(widths(often, [16]), widths(once, [16]), rtol=0.1)
