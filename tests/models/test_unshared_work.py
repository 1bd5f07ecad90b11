"""Scripts whose workers share their work, share half of it, or each do all of it: told by what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.speed.boundary import Boundary
from optimus_models.speed.scaling import ScalingCurve, Unshared, mean_level, predict_many

PERHAPS = Unshared(0.05)
Law = Callable[[np.ndarray], np.ndarray]
SHARED: Law = lambda workers: workers / (1.0 + 0.05 * (workers - 1.0))  # noqa: E731
HALF: Law = lambda workers: np.sqrt(workers)  # noqa: E731
UNSHARED: Law = lambda workers: np.ones(len(workers))  # noqa: E731
LAWS = pytest.mark.parametrize("law", [SHARED, HALF, UNSHARED], ids=["shared", "half", "unshared"])


def curve(law: Law, sizes: Sequence[int], unshared: Unshared | None = PERHAPS) -> ScalingCurve:
    return ScalingCurve.fit(sizes, 6.5 * law(np.array(sizes, dtype=float)), unshared=unshared)


@LAWS
@pytest.mark.parametrize("sizes", [[1, 2], [1, 2, 4]])
def test_two_sizes_tell_a_larger_one(law: Law, sizes: list[int]) -> None:
    ahead = np.array([2.0 * sizes[-1]])
    (mean,), (low,), (high,) = curve(law, sizes).predict_with_interval(ahead, ahead)
    (true,) = 6.5 * law(ahead)
    assert low < true < high
    assert mean == pytest.approx(true, rel=0.25 if len(sizes) == 2 else 0.05)


def test_each_size_that_is_no_faster_brings_what_is_told_nearer_to_it() -> None:
    told = [float(curve(UNSHARED, sizes).predict([8], [8])[0]) for sizes in ([1], [1, 2], [1, 2, 4], [1, 2, 4, 8])]
    assert all(later < earlier for earlier, later in pairwise(told))
    firm = curve(UNSHARED, [1, 2], None).predict([8], [8])[0]
    assert told[1] < 0.8 * firm
    assert told[-1] == pytest.approx(6.5, rel=0.02)


def test_one_size_leaves_a_doubt_and_nearly_the_speeds() -> None:
    sizes = np.array([2, 8])
    (doubted, low, high), (sure, lower, higher) = (
        curve(SHARED, [1], unshared).predict_with_interval(sizes, sizes) for unshared in (PERHAPS, None)
    )
    assert (low < lower).all()
    np.testing.assert_allclose(high, higher, rtol=0.05)
    np.testing.assert_allclose(doubted, sure, rtol=0.1)


def test_sizes_that_scale_end_the_doubt() -> None:
    sizes = np.array([8, 16])
    for doubted, sure in zip(
        *(curve(SHARED, [1, 2, 4], unshared).predict_with_interval(sizes, sizes) for unshared in (PERHAPS, None)),
        strict=True,
    ):
        np.testing.assert_allclose(doubted, sure, rtol=0.01)


def test_what_may_not_be_is_no_doubt() -> None:
    sizes = np.array([1, 2, 8])
    none, some = (curve(HALF, [1, 2], unshared) for unshared in (Unshared(0.0), None))
    np.testing.assert_allclose(none.predict(sizes, sizes), some.predict(sizes, sizes))
    for one, other in zip(none.predict_interval(sizes, sizes), some.predict_interval(sizes, sizes), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.02)


def test_other_jobs_that_were_no_faster_tell_it_of_this_one() -> None:
    """Six of them, each with one size: their levels are alike if nothing is shared, and else by chance."""
    others = [([workers], [6.5]) for workers in (1, 2, 1, 2, 1, 2)]
    doubted, firm = (ScalingCurve.fit([], [], others=others, unshared=each) for each in (PERHAPS, None))
    assert doubted.predict([1, 2], [0, 0]) == pytest.approx([6.5, 6.5], rel=0.1)
    assert firm.predict([1], [0])[0] < 0.9 * 6.5


def test_runs_at_different_sizes_do_not_tell_how_much_runs_differ() -> None:
    """Of two that scaled otherwise than expected, the new one is as well known as of two that scaled so."""
    for unshared in (PERHAPS, None):
        widths = [
            np.log(np.divide(*ScalingCurve.fit([], [], others=others, unshared=unshared).predict_interval([1], [1])))
            for others in ([([1], [6.5]), ([2], [12.4])], [([1], [6.5]), ([2], [6.5])])
        ]
        assert widths[1] == pytest.approx(widths[0], rel=0.2)


SIZED = st.dictionaries(st.integers(1, 64), st.floats(0.01, 100.0), min_size=1, max_size=6)
PROBABILITIES = st.floats(0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(SIZED, st.integers(1, 128), PROBABILITIES)
def test_an_interval_has_the_mean_in_it_and_grows_with_its_coverage(
    measured: dict[int, float], workers: int, probability: float
) -> None:
    fitted = ScalingCurve.fit(list(measured), list(measured.values()), unshared=Unshared(probability))
    mean, low, high = fitted.predict_with_interval([workers], [0])
    _, lower, higher = fitted.predict_with_interval([workers], [0], coverage=0.95)
    assert 0 < lower[0] <= low[0] < mean[0] < high[0] <= higher[0] < np.inf


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SIZED, st.one_of(st.none(), PROBABILITIES)), min_size=1, max_size=4))
def test_many_are_predicted_as_each_alone(jobs: list[tuple[dict[int, float], float | None]]) -> None:
    curves = [
        ScalingCurve.fit(list(each), list(each.values()), unshared=None if p is None else Unshared(p))
        for each, p in jobs
    ]
    workers = np.array([1.0, 3.0, 40.0])
    which = np.repeat(np.arange(len(curves)), len(workers))
    alone = np.concatenate([each.predict(workers, workers) for each in curves])
    np.testing.assert_allclose(predict_many(curves, which, np.tile(workers, len(curves))), alone, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 100), st.floats()), max_size=8))
def test_never_raises_on_data(drawn: list[tuple[int, float]]) -> None:
    fitted = ScalingCurve.fit([w for w, _ in drawn], [f for _, f in drawn], unshared=PERHAPS)
    mean, low, high = fitted.predict_with_interval([1, 7], [0, 0])
    assert ((low > 0) & (low <= mean) & (mean <= high) & (high < np.inf)).all()


def test_sizes_beyond_a_node_are_doubted_besides() -> None:
    doubted, sure = (
        ScalingCurve.fit([1], [6.5], boundary=boundary, unshared=PERHAPS) for boundary in (Boundary(4), None)
    )
    assert doubted.predict_interval([4], [4])[0] == pytest.approx(sure.predict_interval([4], [4])[0])
    assert doubted.predict_interval([8], [8])[0] < sure.predict_interval([8], [8])[0]


def test_levels_of_one_worker() -> None:
    assert mean_level([1, 2], [6.5, 6.5], is_shared=False) == pytest.approx(np.log(6.5))
    assert mean_level([1, 4], 6.5 * SHARED(np.array([1.0, 4.0]))) == pytest.approx(np.log(6.5))
    assert mean_level([], []) == mean_level([1], [0.0]) == 0.0
