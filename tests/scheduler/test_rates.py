"""Learning rates that were reported and those that are planned, as one schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.builders import a_job

from optimus_scheduler.forecast.fits import Fits, rate_schedule
from optimus_scheduler.model import Job
from optimus_scheduler.settings import Settings

STEPS = tuple(float(step) for step in range(10, 210, 10))
LOSSES = tuple(1.0 / (0.01 * step + 0.5) + 0.2 for step in STEPS)


def reporting(measured: dict[float, float], planned: dict[float, float]) -> Job:
    return replace(
        a_job("a"),
        step=200,
        loss_steps=STEPS,
        losses=LOSSES,
        rate_steps=tuple(measured),
        learning_rates=tuple(measured.values()),
        planned_rate_steps=tuple(planned),
        planned_rates=tuple(planned.values()),
    )


def lowered_at(job: Job, *steps: float) -> list[float]:
    """By how much of its highest rate."""
    schedule = rate_schedule(job)
    assert schedule is not None
    return schedule.lowered(np.array(steps)).tolist()  # type: ignore[no-any-return]


def test_nothing_told_is_no_schedule() -> None:
    assert rate_schedule(reporting({}, {})) is None


def test_a_plan_counts_from_the_newest_report_on() -> None:
    plan = {0.0: 0.1, 299.0: 0.1, 300.0: 0.01}
    assert lowered_at(reporting({}, plan), 0, 299, 300, 900) == pytest.approx([0.0, 0.0, 0.9, 0.9])
    told = reporting({0.0: 0.3, 199.0: 0.4}, plan)  # four workers of a job whose batch grows with them
    assert lowered_at(told, 0, 199, 299, 300) == pytest.approx([0.0, 0.0, 0.0, 0.9])
    overdue = reporting({0.0: 0.1, 999.0: 0.02}, plan)
    assert lowered_at(overdue, 999, 2000) == pytest.approx([0.8, 0.8]), "it stays at its last rate"


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20), st.lists(st.floats(0, 1e3), max_size=20))
def test_any_reports_and_plans_make_a_schedule_of_bounded_length(planned: list[float], measured: list[float]) -> None:
    job = reporting(dict(enumerate(measured)), {10.0 * n: rate for n, rate in enumerate(planned)})
    schedule = rate_schedule(job)
    if schedule is None:
        return
    assert len(schedule.steps) <= 256
    assert (np.diff(schedule.steps) > 0).all()
    assert ((schedule.shares >= 0) & (schedule.shares <= 1)).all()


def test_a_planned_fall_of_the_rate_lowers_the_expected_loss_and_a_new_plan_is_a_new_fit() -> None:
    fits, settings = Fits(), Settings()
    job = reporting({0.0: 0.1, 199.0: 0.1}, {0.0: 0.1, 299.0: 0.1, 300.0: 0.01})
    without = replace(job, id="b", planned_rate_steps=(), planned_rates=())
    falling, steady = (fitted.curve for fitted in fits.of([job, without], settings))
    assert falling.predict([250.0]) == pytest.approx(steady.predict([250.0]))
    assert falling.predict([400.0])[0] < 0.99 * steady.predict([400.0])[0]
    assert fits.of([job], settings)[0].curve is falling, "nothing new was told"
    later = replace(job, planned_rate_steps=(0.0, 599.0, 600.0))
    assert fits.of([later], settings)[0].curve.predict([400.0]) == pytest.approx(steady.predict([400.0]))
