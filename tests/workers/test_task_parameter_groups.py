"""Which parameters are updated how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.task.parameter_groups import named_groups, parameter_groups
from optimus_workers.wire.values import UpdateGroup
from optimus_workers.worker.flat_model import make_flat, task_profile


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2))


def task(groups: Callable[[nn.Module], Any] | None, **optimizer: Any) -> TrainingTask:
    spec = {"learning_rate": 0.5, "weight_decay": 0.01} | optimizer
    return TrainingTask(
        model=network,
        loss=lambda model, batch: model(batch).mean(),
        dataset=[torch.zeros(3)],
        optimizer=OptimizerSpec(**spec),
        global_batch_size=1,
        parameter_groups=groups,
    )


def test_without_groups_all_are_updated_alike() -> None:
    flat, updates = make_flat(task(None), network())
    assert updates == ()
    assert flat.group_ranges == ((0, 48),)
    assert task_profile(task(None), flat, updates).update.groups == ()


def test_names_and_dimensions_make_groups_each_a_range_of_its_own() -> None:
    groups = task(lambda model: named_groups(model, {"2.*": {"lr": 0.05}}, decay_vectors=False), max_gradient_norm=2.0)
    flat, updates = make_flat(groups, network())
    assert updates == (
        UpdateGroup(0, 16, 1.0, 0.01),  # 0.weight
        UpdateGroup(16, 32, 1.0, 0.0),  # 0.bias and the norm
        UpdateGroup(32, 48, 0.1, 0.01),  # 2.weight
        UpdateGroup(48, 64, 0.1, 0.0),  # 2.bias
    )
    assert flat.n_parameters == 3 * 5 + 5 + 5 + 5 + 5 * 2 + 2
    assert flat.parameter_floats == 64
    flat.values[48:50] = 7.0
    assert dict(flat.model.named_parameters())["2.bias"].tolist() == [7.0, 7.0]
    rule = task_profile(groups, flat, updates).update
    assert (rule.groups, rule.max_gradient_norm) == (updates, 2.0)


def test_groups_that_are_updated_alike_are_one() -> None:
    def each_alone(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": parameter, "name": name} for name, parameter in model.named_parameters()]

    model = network()
    (only,) = parameter_groups(task(each_alone), model)
    assert [id(parameter) for parameter in only.parameters] == [id(parameter) for parameter in model.parameters()]
    assert make_flat(task(each_alone), network())[1] == ()


def test_what_torchs_optimizers_take_is_taken() -> None:
    def head_and_body(model: nn.Module) -> list[dict[str, Any]]:
        assert isinstance(model, nn.Sequential)
        model[0].requires_grad_(False)
        named = list(model[1].named_parameters())
        return [{"params": model[0].parameters()}, {"params": named}, {"params": model[2].parameters(), "lr": 1}]

    model = network()
    groups = parameter_groups(task(head_and_body), model)
    assert [len(group.parameters) for group in groups] == [2, 2], "frozen ones are nobody's"
    assert [group.learning_rate_scale for group in groups] == [1.0, 2.0]
    assert len(parameter_groups(task(lambda model: model.parameters()), network())) == 1


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda model: None, "a list of dicts as for torch.optim, not NoneType"),
        (lambda model: [{"lr": 1.0}], 'must be a dict with "params"'),
        (lambda model: [{"params": model.parameters(), "betas": (0.8, 0.9)}], "'betas' is the same for all groups"),
        (lambda model: [{"params": model.parameters(), "lr": 0}], "lr must be a number above 0"),
        (
            lambda model: [{"params": model.parameters(), "weight_decay": -1}],
            "weight_decay must be a number not below",
        ),
        (lambda model: [{"params": "0.weight"}], "must be parameters of the model, not str"),
        (lambda model: [{"params": model[0].parameters()}], "1.weight, 1.bias, 2.weight, 2.bias in no group"),
        (lambda model: [{"params": model.parameters()}, {"params": model[0].weight}], "0.weight is in two groups"),
        (lambda model: [{"params": network().parameters()}], "not of the model"),
        (
            lambda model: named_groups(model, {"head.*": {"lr": 1.0}}),
            r"no parameter is left for 'head.\*'; there are 0.w",
        ),
    ],
)
def test_says_what_is_wrong(groups: Callable[[nn.Module], Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        parameter_groups(task(groups), network())
