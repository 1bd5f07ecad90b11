"""The learning rates that a task is to have, as few points."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.test_task_definition import task

from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_contract.result import PlannedRates
from optimus_workers.service_client import ServiceClient
from optimus_workers.task.definition import TrainingTask
from optimus_workers.telemetry.planned_rates import planned, sampled_steps, thinned
from optimus_workers.worker.training import planned_rates, report_planned_rates

STEPS_PER_EPOCH = 2.5
"""Of `task`."""


def spec(**convergence: Any) -> JobSpec:
    return read(JobSpec, {"name": "job", "task": "m:f", "convergence": convergence})


def plan_of(trained: TrainingTask, **convergence: Any) -> PlannedRates:
    plan = planned_rates(trained, spec(**convergence))
    assert plan is not None
    plan.check()
    return plan


def rates_at(plan: PlannedRates, steps: list[int]) -> list[float]:
    return [float(rate) for rate in np.interp(steps, plan.steps, plan.rates)]


SCHEDULES: dict[str, Callable[[int, float], float]] = {
    "step": lambda _, epoch: 0.1 ** sum(epoch >= milestone for milestone in (20, 40, 50)),
    "cosine": lambda step, _: 0.5 * (1 + math.cos(math.pi * step / 150)),
    "warm-up": lambda step, _: min(1.0, (step + 1) / 30) * (1 - step / 150),
    "exponential": lambda _, epoch: 0.9**epoch,
    "restarts": lambda step, _: 0.5 * (1 + math.cos(math.pi * (step % 40) / 40)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_plan_is_what_each_step_uses(name: str) -> None:
    trained = task(learning_rate_at=SCHEDULES[name])
    plan = plan_of(trained, max_epochs=60)
    steps = list(range(150))
    assert plan.steps[-1] == 149, "60 epochs"
    assert rates_at(plan, steps) == pytest.approx([trained.learning_rate(step) for step in steps], rel=1e-6, abs=1e-9)


def test_a_step_schedule_is_two_points_for_each_step() -> None:
    plan = plan_of(task(learning_rate_at=SCHEDULES["step"]), max_epochs=60)
    assert plan.steps == [0, 49, 50, 99, 100, 124, 125, 149]
    assert plan.rates == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005])


def test_a_long_schedule_is_followed_closely() -> None:
    trained = task(learning_rate_at=lambda step, _: 0.5 * (1 + math.cos(math.pi * step / 10**6)))
    plan = plan_of(trained, max_steps=10**6)
    assert len(plan.steps) == 256
    steps = list(range(0, 10**6, 997))
    assert rates_at(plan, steps) == pytest.approx([trained.learning_rate(step) for step in steps], abs=1e-4)


def test_how_far_a_schedule_is_looked_at() -> None:
    falling = task(learning_rate_at=lambda step, _: 1.0 / (1.0 + step) ** 2)
    assert plan_of(falling, max_epochs=8, max_steps=100).steps[-1] == 19
    assert plan_of(falling, max_epochs=8, max_steps=10).steps[-1] == 9
    assert plan_of(falling, loss_decrease={"below": 0.01}).steps[-1] == 300 * STEPS_PER_EPOCH - 1
    assert plan_of(task(), max_epochs=8) == PlannedRates(steps=[0], rates=[0.5]), "constant"


def test_schedules_that_cannot_be_told_are_left_out() -> None:
    def refuses(step: int, _: float) -> float:
        if step > 5:
            raise IndexError(step)
        return 1.0

    for schedule in (refuses, lambda *_: math.nan, lambda *_: -1.0, lambda *_: "fast"):
        assert planned_rates(task(learning_rate_at=schedule), spec(max_steps=20)) is None


@given(st.dictionaries(st.integers(0, 10**9), st.floats(0, 1e6), min_size=1, max_size=400), st.integers(2, 40))
def test_a_plan_is_bounded_and_increases(points: dict[int, float], most: int) -> None:
    plan = planned(list(points.items()))
    assert plan is not None
    plan.check()
    assert len(plan.steps) <= 256
    assert {plan.steps[0], plan.steps[-1]} == {min(points), max(points)}
    steps = sorted(points)
    rates = [points[step] for step in steps]
    few = thinned(steps, rates, most)
    few.check()
    assert len(few.steps) <= max(most, 2)
    assert all(points[step] == rate for step, rate in zip(few.steps, few.rates, strict=True))


@given(st.integers(0, 10**6), st.integers(1, 10**9))
def test_the_steps_that_are_looked_at_are_bounded_and_reach_the_end(first: int, length: int) -> None:
    steps = sampled_steps(first, first + length)
    assert len(steps) <= 2001
    assert (steps[0], steps[-1]) == (first, first + length - 1)
    assert steps == sorted(set(steps))


def test_the_service_is_told_and_may_be_away() -> None:
    told: SimpleQueue[tuple[str, dict[str, object]]] = SimpleQueue()

    def answer(request: httpx.Request) -> httpx.Response:
        told.put((request.url.path, json.loads(request.content)))
        return httpx.Response(503)

    client = ServiceClient("http://service", "job", "token", transport=httpx.MockTransport(answer))
    report_planned_rates(task(), spec(max_steps=3), client)
    assert told.get(timeout=30) == ("/v1/jobs/job/learning-rates", {"steps": [0], "rates": [0.5]})
