from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.task.definition import checked_loss


def task(**changes: Any) -> TrainingTask:
    parts: dict[str, Any] = {
        "model": lambda: nn.Linear(2, 1),
        "loss": lambda model, batch: model(batch).mean(),
        "dataset": [torch.full((2,), float(index)) for index in range(10)],
        "optimizer": OptimizerSpec(learning_rate=0.5),
        "global_batch_size": 4,
    }
    return TrainingTask(**parts | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.Linear(2, 1).state_dict()}, "model must be a function"),
        ({"model": nn.Linear(2, 1)}, "not the module"),
        ({"loss": None}, "loss must be a function"),
        ({"dataset": iter([1, 2])}, "dataset must be map-style"),
        ({"optimizer": "sgd"}, "optimizer must be an OptimizerSpec"),
        ({"global_batch_size": 0}, "global_batch_size must be a whole number"),
        ({"global_batch_size": True}, "global_batch_size must be a whole number"),
        ({"global_batch_size": 4.0}, "global_batch_size must be a whole number"),
        ({"micro_batches": -1}, "micro_batches must be a whole number"),
        ({"collate": 1}, "collate must be a function"),
        ({"evaluate": {}}, "evaluate must be a function"),
        ({"learning_rate_at": 0.1}, "learning_rate_at must be a function"),
        ({"parameter_groups": []}, "parameter_groups must be a function"),
    ],
)
def test_says_which_part_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        task(**changes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "lion"}, "kind must be sgd or adamw"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"nesterov": True}, "nesterov"),
        ({"weight_decay": -1e-4}, "weight_decay"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"eps": 0.0}, "eps"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm must be above 0"),
    ],
)
def test_says_which_optimizer_value_is_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        OptimizerSpec(**values)


def test_an_empty_dataset_is_found_when_it_is_read() -> None:
    with pytest.raises(TaskError, match="empty"):
        task(dataset=[]).n_examples  # noqa: B018 - the property raises


def test_weights_come_from_the_seed_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        (first, _) = task().build_model(seed).parameters()
        return first.detach()

    before = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("model", [lambda: None, nn.Flatten])
def test_refuses_a_model_that_cannot_be_trained(model: Any) -> None:
    with pytest.raises(TaskError, match=r"model\(\)"):
        task(model=model).build_model(0)


def test_batch_of_a_plain_dataset() -> None:
    assert task().batch([3, 1]).tolist() == [[3.0, 3.0], [1.0, 1.0]]


def test_batch_of_a_dataset_that_gives_many_at_once() -> None:
    class Many(list[int]):
        def __getitems__(self, indices: list[int]) -> str:
            return f"examples {indices}"

    chosen = torch.tensor([2, 0]).numpy()
    assert task(dataset=Many(range(5)), collate=str.upper).batch(chosen) == "EXAMPLES [2, 0]"


def test_learning_rate_is_multiplied_by_the_schedule() -> None:
    assert task().learning_rate(7) == 0.5
    scheduled = task(learning_rate_at=lambda step, epoch: 1 / (1 + step + 10 * epoch))
    assert scheduled.learning_rate(0) == 0.5
    assert scheduled.learning_rate(5) == pytest.approx(0.5 / (1 + 5 + 10 * 2))  # 10 / 4 steps per epoch: 2 epochs


def test_the_jobs_batch_size_replaces_the_tasks() -> None:
    assert task().with_global_batch_size(None).global_batch_size == 4
    changed = task().with_global_batch_size(5)
    assert changed.global_batch_size == 5
    assert changed.steps_per_epoch == 2


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        task().global_batch_size = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (0.5, "it returned a float (no float(...), .item() or .numpy())"),
        (torch.ones(3, requires_grad=True), "it returned a tensor of shape (3,) (take its .mean())"),
        (torch.ones(()), "it returned a tensor without one (no .detach()"),
    ],
)
def test_a_loss_that_no_gradient_can_come_of_is_told_by_what_it_is(returned: object, told: str) -> None:
    with pytest.raises(TaskError, match=re.escape(told)):
        checked_loss(returned)
    good = torch.ones((1,), requires_grad=True)
    assert checked_loss(good) is good
