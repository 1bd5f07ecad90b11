"""A job's time left where ended runs that did the same work changed their pace on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.scheduler.builders import NOW, a_job, a_spec

from optimus_models.speed.course import AS_MEASURED
from optimus_scheduler.ahead.look_ahead import look_ahead
from optimus_scheduler.ahead.queue import Queue, as_fresh
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import RememberingForecaster, forecast
from optimus_scheduler.forecast.pace_to_come import pace_to_come
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    EndedJob,
    Interval,
    Job,
    Node,
    Resources,
    SpeedSample,
)
from optimus_scheduler.settings import Settings

TOTAL, CHANGE = 300, 120
FAST, SLOW = 0.1, 0.35
SETTINGS = Settings()
STEPS = Interval(TOTAL, TOTAL, TOTAL)


def seconds_until(step: float) -> float:
    return FAST * min(step, CHANGE) + SLOW * max(step - CHANGE, 0.0)


def ended(name: str = "old", **fields: Any) -> EndedJob:
    steps = tuple(float(step) for step in range(5, TOTAL, 10))
    known: dict[str, Any] = {
        "speed_samples": (SpeedSample(1, 0, 1.0 / SLOW, n_steps=14),),
        "architecture": Architecture.SCRIPT,
        "total_steps": TOTAL,
        "pace_steps": steps,
        "pace_seconds": tuple(FAST if step < CHANGE else SLOW for step in steps),
    }
    return EndedJob(name, "slower.py", "default", None, **known | fields)


def running(seconds: float, similar: tuple[EndedJob, ...], **fields: Any) -> Job:
    """A run of the same script so many seconds after its start, with windows of 5 s, the last of which may be short."""
    samples, at, step = [], 0.0, 0
    while seconds - at >= 1.0:
        end = min(at + 5.0, seconds)
        until = max(step for step in range(TOTAL + 1) if seconds_until(step) <= end + 1e-9)
        samples.append(SpeedSample(1, 0, (until - step) / (end - at), n_steps=until - step, at=NOW - seconds + end))
        at, step = end, until
    spec = replace(
        a_spec(minimum=(1, 0), maximum=(1, 0), rule=ConvergenceRule(max_steps=TOTAL)),
        architecture=Architecture.SCRIPT,
        global_batch_size=None,
        family="slower.py",
    )
    known: dict[str, Any] = {"step": step, "started_at": NOW - seconds, "allocated_at": NOW - seconds}
    return a_job("new", has=(1, 0), spec=spec, measured=tuple(samples), similar=similar, **known | fields)


MOMENTS = pytest.mark.parametrize("seconds", [5.0, 10.0, 13.0, 16.0, 20.0, 30.0, 50.0, 65.0])


@MOMENTS
@pytest.mark.parametrize("n_runs", [2, 5, 11])
def test_the_time_left_is_that_of_the_steps_to_come(seconds: float, n_runs: int) -> None:
    job = running(seconds, tuple(ended(f"old-{n}") for n in range(n_runs)))
    left, true = forecast(job, NOW, SETTINGS).forecast.remaining_seconds, seconds_until(TOTAL) - seconds
    assert left is not None
    assert left.low <= true <= left.high
    assert left.mean == pytest.approx(true, rel=0.25)


def test_without_ended_runs_it_is_that_of_the_present_pace() -> None:
    left = forecast(running(5.0, ()), NOW, SETTINGS).forecast.remaining_seconds
    assert left is not None
    assert left.high < 45.0


@pytest.mark.parametrize(
    "other",
    [
        {"arguments": ("--width", "8")},
        {"architecture": Architecture.ALLREDUCE},
        {"pace_steps": (), "pace_seconds": ()},
        {"pace_seconds": (FAST,) * 30},
    ],
)
def test_runs_that_did_other_work_or_had_an_even_pace_change_nothing(other: dict[str, Any]) -> None:
    known = tuple(ended(f"old-{n}", **other) for n in range(4))
    job = running(5.0, known)
    assert pace_to_come(job, STEPS, SETTINGS) == AS_MEASURED
    without = running(5.0, tuple(replace(each, pace_steps=(), pace_seconds=()) for each in known))
    assert forecast(job, NOW, SETTINGS).forecast == forecast(without, NOW, SETTINGS).forecast


def test_runs_that_name_other_counts_of_steps_did_the_same_work() -> None:
    known = tuple(ended(f"old-{n}", arguments=("--steps", "300")) for n in range(2))
    job = running(5.0, known)
    job = replace(job, spec=replace(job.spec, arguments=("--steps", "600")))
    longer = pace_to_come(job, Interval(600, 600, 600), SETTINGS)
    assert longer.ratio == pytest.approx(3.3, rel=0.15)


def test_runs_with_another_batch_are_compared_by_their_epochs() -> None:
    known = tuple(ended(f"old-{n}") for n in range(3))
    same = pace_to_come(running(5.0, known), STEPS, SETTINGS)
    halved = tuple(
        replace(
            each,
            steps_per_epoch=10.0,
            pace_steps=tuple(step / 2 for step in each.pace_steps),
            pace_seconds=tuple(2 * seconds for seconds in each.pace_seconds),
        )
        for each in known
    )
    found = pace_to_come(running(5.0, halved, steps_per_epoch=20.0), STEPS, SETTINGS)
    assert [found.ratio, found.doubt] == pytest.approx([same.ratio, same.doubt], rel=1e-3)


def test_before_it_has_measured_a_speed_nothing_changes() -> None:
    job = replace(running(5.0, (ended("a"), ended("b"))), speed_samples=())
    assert pace_to_come(job, STEPS, SETTINGS) == AS_MEASURED


def test_the_look_at_the_queue_says_the_same() -> None:
    for seconds in (5.0, 16.0, 40.0):
        one = forecast(running(seconds, tuple(ended(f"old-{n}") for n in range(4))), NOW, SETTINGS)
        queue = Queue(NOW, (Node("node-0", Resources(4.0, 2**36)),), (one,), {})
        end = look_ahead(queue, policy_named("optimus"), SETTINGS)["new"].end
        assert end is not None
        true = seconds_until(TOTAL) - seconds
        assert end.low - NOW <= true <= end.high - NOW
        assert end.mean - NOW == pytest.approx(true, rel=0.25)


def test_decisions_are_made_by_the_same_seconds() -> None:
    one = forecast(running(5.0, tuple(ended(f"old-{n}") for n in range(4))), NOW, SETTINGS)
    assert one.forecast.steps_per_second == pytest.approx(10.0, rel=0.05), "the speed that is told is the present one"
    assert one.remaining_seconds(one.present) == pytest.approx(70.0, rel=0.2)
    assert as_fresh(one, "next", NOW).forecast.course == AS_MEASURED


@MOMENTS
def test_remembering_changes_nothing(seconds: float) -> None:
    job = running(seconds, tuple(ended(f"old-{n}") for n in range(3)))
    remembering = RememberingForecaster()
    remembering([job], NOW, SETTINGS)
    for later in (NOW + 1.0, NOW + 2.5):
        (one,) = remembering([job], later, SETTINGS)
        assert one.forecast == forecast(job, later, SETTINGS).forecast
