"""What finished runs add to a prediction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models import FinishedRun, LossCurve, Prior, RateSchedule
from optimus_models.history import FloatArray, LossBatch, LossHistory
from optimus_models.loss.curve import PaperLossCurve
from optimus_models.loss.finished_runs import MAX_RUNS, smoothed

STEPS = np.arange(1.0, 101.0)


def stepped(level: float = 1.0) -> FloatArray:
    """A run whose learning rate is lowered at step 60: nothing before shows it."""
    losses: FloatArray = level * (1.0 / (0.1 * STEPS + 1.0) + 0.4) * np.where(STEPS > 60, 0.4, 1.0)
    return losses


def test_a_drop_that_earlier_runs_had_is_foreseen() -> None:
    prior = Prior.of([FinishedRun.of(STEPS, stepped(level), same_project=True) for level in (0.5, 2.0)])
    known = LossCurve.fit(STEPS[:40], stepped()[:40], history=prior)
    unknown = LossCurve.fit(STEPS[:40], stepped()[:40])
    true = stepped()[-1]
    assert known.predict([100.0])[0] == pytest.approx(true, rel=0.15)
    assert unknown.predict([100.0])[0] > 1.5 * true


def test_runs_that_went_another_way_hardly_count() -> None:
    rising = FinishedRun.of(STEPS, np.linspace(0.1, 5.0, 100), same_project=True)
    alone = LossCurve.fit(STEPS[:40], stepped()[:40])
    beside = LossCurve.fit(STEPS[:40], stepped()[:40], history=Prior.of([rising]))
    assert beside.experts is not None
    assert beside.experts.own_share > 0.9
    assert beside.predict([80.0])[0] == pytest.approx(alone.predict([80.0])[0], rel=0.1)


def test_without_runs_nothing_changes() -> None:
    alone = LossCurve.fit(STEPS[:40], stepped()[:40])
    beside = LossCurve.fit(STEPS[:40], stepped()[:40], history=Prior.of([None]))
    np.testing.assert_array_equal(alone.predict(STEPS), beside.predict(STEPS))


def test_the_past_is_the_jobs_own() -> None:
    prior = Prior.of([FinishedRun.of(STEPS, stepped(2.0))])
    alone = LossCurve.fit(STEPS[:40], stepped()[:40])
    beside = LossCurve.fit(STEPS[:40], stepped()[:40], history=prior)
    np.testing.assert_allclose(alone.predict(STEPS[:40]), beside.predict(STEPS[:40]))


def test_the_papers_curve_looks_at_no_other_run() -> None:
    prior = Prior.of([FinishedRun.of(STEPS, stepped(2.0))])
    assert PaperLossCurve.fit(STEPS[:40], stepped()[:40], history=prior).experts is None


def test_a_short_run_goes_on_as_its_own_curve_would() -> None:
    run = FinishedRun.of(STEPS[:50], 1.0 / STEPS[:50])
    assert run is not None
    assert np.all(np.diff(run.log_loss(np.array([45.0, 60.0, 90.0, 200.0]))) < 0)


def test_a_prior_is_bounded_and_keeps_the_newest() -> None:
    runs = [FinishedRun.of([1.0, 2.0], [float(i + 1), 1.0]) for i in range(MAX_RUNS + 5)]
    assert Prior.of(runs).runs == tuple(runs[5:])


def test_the_table_of_a_prior_says_what_its_runs_say() -> None:
    runs = [FinishedRun.of(STEPS, stepped(level)) for level in (0.5, 2.0)]
    steps = np.array([20.0, 55.0, 100.0, 400.0])
    expected = np.array([run.log_loss(steps) for run in runs if run is not None])
    np.testing.assert_allclose(Prior.of(runs).log_losses(steps), expected, atol=0.03)


def test_jobs_fitted_together_hear_the_same_of_their_runs_as_one_by_one() -> None:
    prior = Prior.of([FinishedRun.of(STEPS, stepped(level), same_project=True) for level in (0.5, 2.0)])
    other = Prior.of([FinishedRun.of(STEPS, stepped(3.0))])
    lengths, priors = (7, 40, 90, 40), (prior, other, None, prior)
    histories = [LossHistory.of(STEPS[:n], stepped(1.0 + n / 100)[:n]) for n in lengths]
    together = LossCurve.fit_many(histories, priors=priors)
    for curve, history, known in zip(together, histories, priors, strict=True):
        alone = LossCurve.fit(history.steps, history.losses, history=known)
        np.testing.assert_allclose(curve.predict(2 * STEPS), alone.predict(2 * STEPS), rtol=1e-9)


def test_smoothing_keeps_a_constant() -> None:
    batch = LossBatch.of([LossHistory.of(STEPS, np.full(100, 3.0))])
    np.testing.assert_allclose(smoothed(batch, np.array([[0.0, 1.0, 50.5, 1e3]])), 1.0)


def share_of(run: FinishedRun | None, losses: FloatArray, schedule: RateSchedule | None = None) -> float:
    """How much one run counts beside the own curve of a job with these losses."""
    curve = LossCurve.fit(STEPS[: len(losses)], losses, history=Prior.of([run]), schedule=schedule)
    assert curve.experts is not None
    return float(curve.experts.shares[0])


def test_an_own_curve_that_foretold_badly_counts_less() -> None:
    """Both jobs go as the run did; the second fell in a way that its first half did not show."""
    even, sudden = 1.0 / (0.1 * STEPS + 1.0) + 0.4, stepped()
    predicted, surprised = (share_of(FinishedRun.of(STEPS, run), run[:80]) for run in (even, sudden))
    assert predicted < 0.6 < surprised


def test_a_run_with_the_planned_rates_counts_more_than_one_with_others() -> None:
    dropped, kept = (RateSchedule.of(STEPS, np.where(STEPS > 60, later, 0.1)) for later in (0.01, 0.1))
    alike, other, unknown = (
        share_of(FinishedRun.of(STEPS, stepped(), schedule=rates), stepped()[:40], dropped)
        for rates in (dropped, kept, None)
    )
    assert other < alike == unknown


@settings(max_examples=50, deadline=None)
@given(st.permutations([0.5, 0.8, 1.0, 2.0, 3.0]), st.integers(5, 60))
def test_the_order_of_runs_changes_no_prediction(levels: list[float], n: int) -> None:
    one, other = (
        LossCurve.fit(
            STEPS[:n],
            stepped()[:n],
            history=Prior.of(FinishedRun.of(STEPS, stepped(level) ** 1.1, same_project=level > 1) for level in order),
        )
        for order in (levels, sorted(levels))
    )
    np.testing.assert_allclose(one.predict(2 * STEPS), other.predict(2 * STEPS))
    np.testing.assert_allclose(one.predict_interval(2 * STEPS), other.predict_interval(2 * STEPS))


any_losses = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40)


@settings(max_examples=100, deadline=None)
@given(st.lists(any_losses, max_size=4), any_losses)
def test_no_runs_make_it_raise(finished: list[list[float]], losses: list[float]) -> None:
    prior = Prior.of(FinishedRun.of(np.arange(len(run)), run) for run in finished)
    curve = LossCurve.fit(np.arange(len(losses)), losses, history=prior)
    ahead = np.array([0.0, 10.0, 1e6])
    mean, (low, high) = curve.predict(ahead), curve.predict_interval(ahead)
    assert not np.any((low > mean) | (mean > high))
    if curve.n_points:
        assert np.all(np.isfinite(mean))
