"""The predicted end of jobs whose epochs take different numbers of steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.builders import NOW, a_job, a_spec

from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import ConvergenceRule, EndedJob, Interval, Job
from optimus_scheduler.settings import Settings

RULE = ConvergenceRule(max_epochs=100.0)


def a_training(step: int, epochs: float | None, per_epoch: float = 200.0, similar: tuple[EndedJob, ...] = ()) -> Job:
    return a_job(
        "a",
        has=(1, 1),
        spec=a_spec(rule=RULE),
        step=step,
        epochs=epochs,
        steps_per_epoch=per_epoch,
        similar=similar,
    )


def an_ended(name: str, steps: int, batch: int = 64) -> EndedJob:
    spec = a_spec(rule=RULE)
    return EndedJob(
        id=name,
        task=spec.family,
        project=spec.project,
        steps_per_epoch=steps / 100,
        global_batch_size=batch,
        total_steps=steps,
        rule=RULE,
    )


def total(job: Job) -> Interval:
    found = forecast(job, NOW, Settings()).forecast.total_steps
    assert found is not None
    return found


def test_epochs_that_are_all_alike_are_a_fixed_number_of_steps() -> None:
    assert total(a_training(500, None)).mean == 20_000.0


def test_ended_jobs_with_the_same_epochs_and_batch_say_how_many_steps_there_are() -> None:
    ended = (an_ended("x", 2100), an_ended("y", 2200), an_ended("z", 9000, batch=512))
    found = total(a_training(100, 0.8, similar=ended))
    assert found.mean == pytest.approx(2150, rel=0.02)
    assert found.low < 2100 < 2200 < found.high


def test_runs_that_ended_before_their_limit_do_not_say_how_many_steps_it_has() -> None:
    whole, stopped = an_ended("x", 2100), replace(an_ended("y", 700), ended_by="command_ends")
    assert total(a_training(100, 0.8, similar=(whole, stopped))) == total(a_training(100, 0.8, similar=(whole,)))


def test_a_job_longer_than_all_that_ended_goes_by_its_own_epochs() -> None:
    assert total(a_training(2500, 50.0, per_epoch=60.0, similar=(an_ended("x", 2100),))).mean > 2500


def test_without_ended_jobs_steps_grow_less_than_epochs() -> None:
    found = total(a_training(400, 10.0))
    assert 400 < found.low < found.mean < 4000


@given(step=st.integers(1, 100_000), epochs=st.floats(0.01, 120.0), per_epoch=st.floats(0.1, 1e5))
def test_a_total_is_never_below_the_present_step(step: int, epochs: float, per_epoch: float) -> None:
    found = total(a_training(step, epochs, per_epoch))
    assert step <= found.low <= found.mean <= found.high
