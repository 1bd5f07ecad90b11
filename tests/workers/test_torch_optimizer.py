"""Any torch optimizer as the update rule of an all-reduce job, and plateau schedules: what travels, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from optimus_workers.allreduce.own_state import EpochPlateau, TravellingOptimizer, n_sections, state_layout
from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TorchOptimizer, TrainingTask, named_groups
from optimus_workers.worker.flat_model import make_flat

OPTIMIZERS: dict[str, TorchOptimizer] = {
    "Adadelta": TorchOptimizer(torch.optim.Adadelta, 0.5),
    "Adafactor": TorchOptimizer(torch.optim.Adafactor, 0.01),
    "Adagrad": TorchOptimizer(torch.optim.Adagrad, 0.1, {"lr_decay": 0.1}),
    "Adam, amsgrad": TorchOptimizer(torch.optim.Adam, 0.01, {"amsgrad": True}),
    "Adamax": TorchOptimizer(torch.optim.Adamax, 0.01, {"weight_decay": 0.01}),
    "ASGD": TorchOptimizer(torch.optim.ASGD, 0.1, {"t0": 2}),
    "NAdam": TorchOptimizer(torch.optim.NAdam, 0.01),
    "RAdam": TorchOptimizer(torch.optim.RAdam, 0.01),
    "RMSprop, centered": TorchOptimizer(torch.optim.RMSprop, 0.01, {"momentum": 0.9, "centered": True}),
    "Rprop": TorchOptimizer(torch.optim.Rprop, 0.01),
    "SGD, dampened": TorchOptimizer(torch.optim.SGD, 0.1, {"momentum": 0.9, "dampening": 0.5}),
}


def task(optimizer: Any, **changes: Any) -> TrainingTask:
    values = torch.linspace(-1, 1, 32).unsqueeze(1)
    return TrainingTask(
        model=lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        loss=lambda model, batch: model(batch).square().mean(),
        dataset=list(values),
        optimizer=optimizer,
        global_batch_size=8,
        **changes,
    )


class Member:
    """A process's model and optimizer."""

    def __init__(self, of: TrainingTask) -> None:
        self.flat, _ = make_flat(of, of.build_model(3))
        layout = state_layout(of, self.flat)
        self.optimizer = TravellingOptimizer(of, self.flat, layout)
        self.sections = [torch.full((self.flat.total_floats,), 7.0) for _ in range(n_sections(layout))]

    def step(self, number: int, rate: float) -> None:
        generator = torch.Generator().manual_seed(number)
        self.flat.push.copy_(torch.randn(self.flat.total_floats, generator=generator))
        self.optimizer.step(rate)

    def hand_over_to(self, other: Member) -> None:
        self.optimizer.gather(self.sections)
        other.flat.values.copy_(self.flat.values)
        other.optimizer.scatter(self.sections)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_hand_over_changes_nothing(name: str, grouped: bool) -> None:
    groups = partial(named_groups, options={"0.*": {"lr": 0.002}}) if grouped else None
    of = task(OPTIMIZERS[name], parameter_groups=groups)
    whole, first, second = Member(of), Member(of), Member(of)
    for number in range(6):
        rate = 0.02 / (1 + number)
        whole.step(number, rate)
        if number == 3:
            first.hand_over_to(second)
        (first if number < 3 else second).step(number, rate)
    assert torch.equal(whole.flat.values, second.flat.values)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_what_torch_does(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    member, model = Member(task(optimizer)), task(optimizer).build_model(3)
    plain = optimizer.over(model.parameters())
    for number in range(4):
        member.step(number, optimizer.learning_rate)
        for parameter, (first, end) in zip(model.parameters(), member.flat.parameter_ranges, strict=True):
            parameter.grad = member.flat.push[first:end].view(parameter.shape).clone()
        plain.step()
    for parameter, (first, end) in zip(model.parameters(), member.flat.parameter_ranges, strict=True):
        assert torch.allclose(parameter.detach().reshape(-1), member.flat.values[first:end], atol=1e-6)


class Keeps(torch.optim.Optimizer):
    """Keeps something for each parameter."""

    def __init__(self, parameters: Any, lr: float, what: Callable[[int, Tensor], object]) -> None:
        super().__init__(parameters, {"lr": lr})
        self.what, self.n_steps = what, 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        assert closure is None
        self.n_steps += 1
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"kept": self.what(self.n_steps, parameter)}


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (TorchOptimizer(torch.optim.LBFGS, 0.1), "LBFGS cannot make a step without a closure"),
        (TorchOptimizer(Keeps, 0.1, {"what": lambda _, p: p.double()}), "of torch.float64"),
        (TorchOptimizer(Keeps, 0.1, {"what": lambda _, p: p.repeat(2, *p.shape)}), "no larger than the parameter"),
        (TorchOptimizer(Keeps, 0.1, {"what": lambda _, p: [p]}), r"'kept' \(list\)"),
        (TorchOptimizer(Keeps, 0.1, {"what": lambda n, p: n if n == 1 else p}), "changes its form"),
        (TorchOptimizer(lambda parameters, lr: 5, 0.1), "must make a torch.optim.Optimizer, not int"),  # type: ignore[arg-type, return-value]
    ],
)
def test_what_cannot_travel_is_refused(optimizer: TorchOptimizer, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        Member(task(optimizer))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"make": 5}, "make must be"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
        ({"options": {"lr": 1.0}}, "it is learning_rate"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        TorchOptimizer(**{"make": torch.optim.RAdam, "learning_rate": 0.1, **fields})


# --- plateaus --------------------------------------------------------------------------------------------------------

WITH_PLATEAU = task(
    OptimizerSpec(learning_rate=0.1),
    plateau=partial(ReduceLROnPlateau, factor=0.5, patience=1, cooldown=1, min_lr=0.004),
)


@settings(deadline=None)
@given(losses=st.lists(st.floats(0.0, 10.0, width=32), min_size=1, max_size=30), cut=st.integers(0, 30))
def test_a_plateau_schedule_is_torchs_own_across_a_hand_over(losses: list[float], cut: int) -> None:
    ours, section = EpochPlateau(WITH_PLATEAU), torch.zeros(16)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=0.004)
    for epoch, loss in enumerate(losses):
        ours.add(torch.tensor([2.0 * loss, 2.0]), ends_epoch=False)
        if epoch == cut:
            ours.gather(section)
            ours = EpochPlateau(WITH_PLATEAU)
            ours.scatter(section)
        ours.add(torch.tensor([2.0 * loss, 2.0]), ends_epoch=True)
        theirs.step(loss)
        assert 0.1 * ours.factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)


def test_other_schedules_are_refused() -> None:
    with pytest.raises(TaskError, match="ReduceLROnPlateau, not StepLR; other schedules are learning_rate_at"):
        EpochPlateau(replace(WITH_PLATEAU, plateau=lambda optimizer: StepLR(optimizer, 1)))


def test_servers_cannot_train_them() -> None:
    assert "allreduce" in (WITH_PLATEAU.why_no_servers or "")
    assert "allreduce" in (task(OPTIMIZERS["RAdam"]).why_no_servers or "")
    assert task(OptimizerSpec()).why_no_servers is None
