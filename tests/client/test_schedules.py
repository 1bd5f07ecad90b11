"""What schedulers of torch are said to do is what they do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.agent import agent, wait_until
from torch.optim import lr_scheduler as schedulers

import optimus_client
from optimus_client.schedules import planned_rates

Make = Callable[[torch.optim.Optimizer], Any]
SCHEDULES: dict[str, Make] = {
    "step": lambda each: schedulers.StepLR(each, 30),
    "milestones": lambda each: schedulers.MultiStepLR(each, [20, 50, 50]),
    "cosine": lambda each: schedulers.CosineAnnealingLR(each, 40),
    "lambda": lambda each: schedulers.LambdaLR(each, lambda count: 1 / (1 + count)),
    "exponential": lambda each: schedulers.ExponentialLR(each, 0.9),
    "linear": lambda each: schedulers.LinearLR(each, total_iters=30),
    "polynomial": lambda each: schedulers.PolynomialLR(each, 60),
    "one cycle": lambda each: schedulers.OneCycleLR(each, 0.1, total_steps=101),
    "cycles": lambda each: schedulers.CyclicLR(each, 0.01, 0.1, step_size_up=10),
    "warm restarts": lambda each: schedulers.CosineAnnealingWarmRestarts(each, 10, 2),
    "factors": lambda each: schedulers.MultiplicativeLR(each, lambda _: 0.95),
    "one after the other": lambda each: schedulers.SequentialLR(
        each, [schedulers.LinearLR(each, 0.1, total_iters=20), schedulers.CosineAnnealingLR(each, 80)], [20]
    ),
    "together": lambda each: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(each, 0.1, 20), schedulers.ExponentialLR(each, 0.9)]
    ),
}


class Halving(schedulers.LRScheduler):
    """A user's own."""

    def get_lr(self) -> list[Any]:
        return [group["lr"] / (2 if self.last_epoch % 25 == 0 and self.last_epoch else 1) for group in
                self.optimizer.param_groups]  # fmt: skip


def made(make: Make) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    return optimizer, make(optimizer)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [*SCHEDULES, "own"])
@pytest.mark.parametrize(("begin", "calls", "per_steps"), [(0, 1, 1), (37, 1, 1), (10, 2, 1), (13, 1, 5)])
def test_the_plan_is_what_the_training_uses(name: str, begin: int, calls: int, per_steps: int) -> None:
    optimizer, scheduler = made(SCHEDULES.get(name, Halving))
    used: dict[int, float] = {}
    plan: dict[int, float] = {}
    for step in range(50):
        if step == begin:
            before = copy.deepcopy((scheduler.state_dict(), optimizer.param_groups))
            plan = dict(planned_rates(scheduler, step=begin, total_steps=50, calls=calls, per_steps=per_steps,
                                      begun=begin % per_steps) or [])  # fmt: skip
            assert repr((scheduler.state_dict(), optimizer.param_groups)) == repr(before), "nothing has changed"
        used[step] = optimizer.param_groups[0]["lr"]
        optimizer.step()
        if (step + 1) % per_steps == 0:
            for _ in range(calls):
                scheduler.step()
    assert plan == pytest.approx({step: rate for step, rate in used.items() if step >= begin}, rel=1e-9, abs=1e-12)


def test_schedules_that_wait_for_what_the_training_shows_have_no_plan() -> None:
    _, plateau = made(lambda each: schedulers.ReduceLROnPlateau(each))
    assert planned_rates(plateau, step=0, total_steps=10) is None
    assert planned_rates(None, step=0, total_steps=10) is None
    assert planned_rates(made(SCHEDULES["step"])[1], step=10, total_steps=10) is None, "nothing is to come"

    def refuses(count: int) -> float:
        return 1.0 if count < 5 else 1 / 0

    assert planned_rates(made(lambda each: schedulers.LambdaLR(each, refuses))[1], step=0, total_steps=10) is None


def test_a_long_plan_is_bounded_and_one_that_would_take_long_is_not_made() -> None:
    plan = planned_rates(made(SCHEDULES["cosine"])[1], step=7, total_steps=10**7)
    assert plan is not None
    assert (len(plan), plan[0][0], plan[-1][0]) == (2001, 7, 10**7 - 1)
    assert planned_rates(made(Halving)[1], step=0, total_steps=10**7) is None


@settings(max_examples=30)
@given(st.integers(0, 10**5), st.integers(1, 10**6), st.integers(1, 5), st.integers(1, 1000))
def test_steps_of_a_plan_increase(step: int, length: int, calls: int, per_steps: int) -> None:
    _, scheduler = made(SCHEDULES["milestones"])
    plan = planned_rates(scheduler, step=step, total_steps=step + length, calls=calls, per_steps=per_steps)
    assert plan is not None
    assert len(plan) <= 2001
    steps = [each for each, _ in plan]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (step, step + length - 1)


def test_a_script_reports_its_schedule_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with agent(tmp_path) as heard:
        for name, value in heard.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("optimus_client.reporting._reporter", None)
        optimus_client.report_schedule(made(SCHEDULES["step"])[1], total_steps=90)
        optimus_client.report(step=1, total_steps=90, learning_rate=0.1)
        assert optimus_client.flush(30)
        optimus_client.report(step=2, learning_rate=0.1)
        assert optimus_client.flush(30)
        wait_until(lambda: heard.steps == [1, 2])
        (plan,) = [each.planned_rates for each in heard.readings if each.planned_rates]
        assert [rate for _, rate in plan] == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)
        monkeypatch.setattr("optimus_client.reporting._reporter", None)
