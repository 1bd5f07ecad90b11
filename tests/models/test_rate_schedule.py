from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models import LossCurve, RateSchedule
from optimus_models.history import LossHistory
from optimus_models.loss.curve import PaperLossCurve

MakeLosses = Callable[..., Any]
STEPS, ALL_STEPS = np.arange(1.0, 41.0), np.arange(1.0, 101.0)
DROP_AT_60 = RateSchedule.of(ALL_STEPS, np.where(ALL_STEPS < 60, 0.1, 0.01))
ANYTHING = st.floats(allow_nan=True, allow_infinity=True)


def test_a_lowered_rate_lowers_the_loss_after_it_only(make_losses: MakeLosses) -> None:
    losses = make_losses(STEPS, noise=0.0)
    plain, informed = LossCurve.fit(STEPS, losses), LossCurve.fit(STEPS, losses, schedule=DROP_AT_60)
    before, after = np.array([20.0, 50.0]), np.array([61.0, 90.0])
    np.testing.assert_allclose(informed.predict(before), plain.predict(before))
    assert np.all(informed.predict(after) < plain.predict(after))


@pytest.mark.parametrize("rates", [np.full(100, 0.1), np.linspace(0.1, 0.2, 100), np.full(40, 0.1), [], [np.nan] * 100])
def test_rates_that_are_not_lowered_change_nothing(make_losses: MakeLosses, rates: Any) -> None:
    losses = make_losses(STEPS, noise=0.0)
    ahead = np.array([50.0, 100.0])
    schedule = RateSchedule.of(ALL_STEPS, rates)
    informed = LossCurve.fit(STEPS, losses, schedule=schedule)
    np.testing.assert_allclose(informed.predict(ahead), LossCurve.fit(STEPS, losses).predict(ahead))


def test_the_papers_curve_does_not_look_at_rates(make_losses: MakeLosses) -> None:
    losses = make_losses(STEPS, noise=0.0)
    plain = PaperLossCurve.fit(STEPS, losses)
    informed = PaperLossCurve.fit(STEPS, losses, schedule=DROP_AT_60)
    np.testing.assert_array_equal(informed.predict([100.0]), plain.predict([100.0]))


def test_each_job_of_a_block_has_its_own_schedule(make_losses: MakeLosses) -> None:
    history = LossHistory.of(STEPS, make_losses(STEPS, noise=0.0))
    plain, informed = LossCurve.fit_many([history, history], schedules=[None, DROP_AT_60])
    assert informed.predict([90.0])[0] < plain.predict([90.0])[0]


def test_a_warm_up_lowers_nothing_and_a_rate_that_ends_at_zero_is_lowered_by_all() -> None:
    schedule = RateSchedule.of(ALL_STEPS, np.interp(ALL_STEPS, [1.0, 20.0, 100.0], [0.0, 0.1, 0.0]))
    assert schedule is not None
    np.testing.assert_allclose(schedule.lowered(np.array([1.0, 20.0, 60.0, 1e6])), [0.0, 0.0, 0.5, 1.0])


@pytest.mark.parametrize("drop", [30.0, 60.0])
def test_what_past_and_planned_rates_take_off_is_told_from_what_steps_do(drop: float) -> None:
    """A law of the form that is fitted: with its rates known, 40 of 100 steps tell the rest."""
    rates = np.where(drop > ALL_STEPS, 0.1, 0.01)
    losses = 0.3 + (1.0 + ALL_STEPS / 5.0) ** -0.9 - 0.15 * (1.0 - rates / 0.1)
    schedule = RateSchedule.of(ALL_STEPS, rates)
    plain, informed = (LossCurve.fit(STEPS, losses[:40], schedule=known) for known in (None, schedule))
    assert informed.predict([100.0])[0] == pytest.approx(losses[-1], abs=0.03)
    assert abs(plain.predict([100.0])[0] - losses[-1]) > 0.06
    np.testing.assert_array_equal(informed.predict_alone([100.0]), plain.predict_alone([100.0]))


def test_the_order_of_its_steps_does_not_matter() -> None:
    one = RateSchedule.of([1, 2, 3], [0.3, 0.2, 0.1])
    other = RateSchedule.of([3, 1, 2, 4], [0.1, 0.3, 0.2, np.nan])
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one[:2], other[:2])


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(ANYTHING, max_size=30), rates=st.lists(ANYTHING, max_size=400), last=st.floats(0, 1e9))
def test_no_schedule_makes_it_raise(steps: list[float], rates: list[float], last: float) -> None:
    schedule = RateSchedule.of(steps, rates)
    if schedule is not None:
        lowered = schedule.lowered(np.array([0.0, 1.0, last, 1e9]))
        assert np.all((lowered >= 0.0) & (lowered <= 1.0))
        assert len(schedule.steps) <= 256
        assert np.isfinite(LossCurve.fit(STEPS, 1.0 / STEPS, schedule=schedule).predict([last])).all()
