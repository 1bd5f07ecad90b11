"""Doubts about the speed of rings that leave a node, of which no size beyond it was measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.speed import SpeedLaw
from optimus_models.speed.boundary import Boundary, Jumps
from optimus_models.speed.ring import RingSamples, RingSpeed
from optimus_models.speed.scaling import ScalingCurve, observed_jump

NODE = 4
SIZES = np.array([2, 4, 5, 8, 16, 64])
BEYOND = SIZES > NODE
WIDTHS = st.floats(0.01, 3.0)
JUMPS = st.lists(st.floats(0.0, 3.0), max_size=20)


def seconds(workers: np.ndarray, jump: float = 1.0) -> np.ndarray:
    """Of a step; its exchange takes `jump` times as long between nodes."""
    return np.asarray(1.0 / workers + exchange(workers, jump))


def exchange(workers: np.ndarray, jump: float = 1.0) -> np.ndarray:
    return np.asarray(np.where(workers > 1, 0.02, 0.0) * np.where(workers > NODE, jump, 1.0))


def script(sizes: list[int], boundary: Boundary | None) -> SpeedLaw:
    return ScalingCurve.fit(sizes, 1.0 / seconds(np.array(sizes)), boundary=boundary)


def all_reduce(sizes: list[int], boundary: Boundary | None) -> SpeedLaw:
    w = np.array(sizes)
    return RingSpeed.fit(RingSamples(w, seconds(w), exchange(w), 1024.0), boundary=boundary)


Fit = Callable[[list[int], Boundary | None], SpeedLaw]
FITS = pytest.mark.parametrize("fit", [script, all_reduce])


def below(law: SpeedLaw) -> np.ndarray:
    """How far down the interval of each size reaches, in logarithms."""
    mean, low, _ = law.predict_with_interval(SIZES, SIZES)
    return np.asarray(np.log(mean / low))


@given(WIDTHS, JUMPS, st.floats(0.5, 0.95))
def test_a_doubt_only_widens(width: float, observed: list[float], coverage: float) -> None:
    (found,) = Jumps.after(observed).half_width_below([width], coverage)
    assert width <= found < math.inf


@given(WIDTHS, JUMPS, st.floats(0.0, 3.0), st.floats(0.1, 3.0))
def test_jumps_that_were_larger_widen_more(width: float, observed: list[float], jump: float, more: float) -> None:
    small, large = (Jumps.after([*observed, each]).half_width_below([width])[0] for each in (jump, jump + more))
    assert small <= large * 1.02  # it stands on 32 values of each


@given(WIDTHS, st.floats(0.01, 1.0), JUMPS)
def test_what_is_less_sure_without_a_jump_is_with_one(width: float, more: float, observed: list[float]) -> None:
    sure, unsure = Jumps.after(observed).half_width_below([width, width + more])
    assert sure < unsure * 1.02  # it stands on 32 values of each


def test_many_jobs_without_a_jump_leave_little_of_the_doubt() -> None:
    none, few, many = (Jumps.after([0.0] * n).half_width_below([0.2])[0] for n in (0, 3, 30))
    assert none > few > many
    assert many < 1.2 * 0.2


@settings(max_examples=20, deadline=None)
@given(JUMPS, WIDTHS)
def test_it_holds_as_often_as_it_says(observed: list[float], width: float) -> None:
    """Of speeds drawn as it believes them to be."""
    jumps, random = Jumps.after(observed), np.random.default_rng(0)
    drawn = random.normal(0.0, width / 1.2816, 20_000) - jumps.scale * (
        random.random(20_000) ** (-1.0 / jumps.shape) - 1
    )
    (down,) = jumps.half_width_below([width])
    assert np.mean((drawn >= -down) & (drawn <= width)) == pytest.approx(0.8, abs=0.03)


@FITS
def test_decisions_go_by_the_same_speeds(fit: Fit) -> None:
    np.testing.assert_array_equal(
        fit([1, 2], Boundary(NODE)).predict(SIZES, SIZES), fit([1, 2], None).predict(SIZES, SIZES)
    )


@FITS
@pytest.mark.parametrize("known", [[1], [1, 2], [1, 2, 4]])
def test_only_sizes_beyond_the_boundary_are_doubted_and_only_downwards(fit: Fit, known: list[int]) -> None:
    doubted, sure = fit(known, Boundary(NODE)), fit(known, None)
    mean, low, high = doubted.predict_with_interval(SIZES, SIZES)
    _, lower, higher = sure.predict_with_interval(SIZES, SIZES)
    np.testing.assert_allclose(high, higher)
    np.testing.assert_allclose(low[~BEYOND], lower[~BEYOND])
    assert (low[BEYOND] < 0.8 * lower[BEYOND]).all()
    assert ((low < mean) & (mean < high)).all()


@FITS
def test_a_size_beyond_the_boundary_ends_the_doubt(fit: Fit) -> None:
    before, after = (below(fit(sizes, Boundary(NODE))) for sizes in ([1, 2, 4], [1, 2, 4, 8]))
    assert (after[BEYOND] < 0.5 * before[BEYOND]).all()


@FITS
def test_so_does_one_that_another_job_of_the_task_measured(fit: Fit) -> None:
    w = np.array([1, 2, 4, 8])
    if fit is script:
        informed: SpeedLaw = ScalingCurve.fit(
            [1], 1.0 / seconds(np.ones(1)), others=[(w, 1.0 / seconds(w))], boundary=Boundary(NODE)
        )
    else:
        own, other = (RingSamples(each, seconds(each), exchange(each), 1024.0) for each in (np.ones(1), w))
        informed = RingSpeed.fit(own, [other], Boundary(NODE))
    assert (below(informed)[BEYOND] < below(fit([1], Boundary(NODE)))[BEYOND]).all()


def test_rings_beyond_a_node_tell_more_of_each_other_than_of_those_within() -> None:
    known, unknown = (below(all_reduce([1, 2, 4, 8], boundary)) for boundary in (Boundary(NODE), None))
    assert (known[SIZES > 8] < unknown[SIZES > 8]).all()
    np.testing.assert_allclose(known[~BEYOND], unknown[~BEYOND])


def test_a_jump_is_how_much_slower_a_job_is_than_its_sizes_within_a_node_tell() -> None:
    w = np.array([1, 2, 4, 8, 16])
    flat, slow = (observed_jump(w, 1.0 / seconds(w, jump), NODE) for jump in (1.0, 20.0))
    assert flat is not None
    assert slow is not None
    assert flat < 0.15
    assert slow == pytest.approx(np.mean(np.log(seconds(w[3:], 20.0) / seconds(w[3:]))), abs=0.15)


@pytest.mark.parametrize("sizes", [[1, 2, 4], [8, 16], []])
def test_one_side_of_a_boundary_tells_no_jump(sizes: list[int]) -> None:
    assert observed_jump(sizes, [1.0] * len(sizes), NODE) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 100), st.floats()), max_size=8))
def test_any_data_tells_a_jump_or_none(drawn: list[tuple[int, float]]) -> None:
    found = observed_jump([w for w, _ in drawn], [f for _, f in drawn], NODE)
    assert found is None or 0.0 <= found < math.inf
