from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.workers.sampling import micro_batch_of_step, step_indices
from torch import nn

from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo import digits

TASKS = [digits.mlp, digits.cnn, digits.resnet]
SMALL: list[Callable[[], TrainingTask]] = [
    lambda: digits.mlp(width=16, depth=2),
    lambda: digits.cnn(channels=4),
    lambda: digits.resnet(channels=4),
]


def gradient(task: TrainingTask, model: nn.Module, n_micro_batches: int) -> torch.Tensor:
    """The gradient of step 0, its batch cut into `n_micro_batches`, shape (n_parameters,)."""
    size, n_examples = task.global_batch_size, task.n_examples
    model.zero_grad()
    for slot in range(n_micro_batches):
        indices = micro_batch_of_step(0, 0, slot, n_micro_batches, size, n_examples)
        (task.loss(model, task.batch(indices)) * len(indices) / size).backward()  # type: ignore[no-untyped-call]
    return torch.cat([part.grad.flatten() for part in model.parameters() if part.grad is not None])


def train(task: TrainingTask, n_steps: int) -> tuple[nn.Module, list[float]]:
    """Plain single-process training with torch's own optimizer."""
    model, spec, losses = task.build_model(seed=0), task.optimizer, []
    assert isinstance(spec, OptimizerSpec)
    parameters = list(model.parameters())
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=spec.learning_rate)
    if spec.kind == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=spec.learning_rate, momentum=spec.momentum)
    for step in range(n_steps):
        optimizer.zero_grad()
        loss = task.loss(model, task.batch(step_indices(0, step, task.global_batch_size, task.n_examples)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_reads_what_scikit_learn_reads() -> None:
    theirs = load_digits()
    assert np.array_equal(digits.read_table(), np.column_stack([theirs.data, theirs.target]))


def test_split_is_fixed_and_complete() -> None:
    (train_images, train_labels), (test_images, test_labels) = digits.training_examples(), digits.held_out_examples()
    assert train_images.shape == (1437, 1, 8, 8)
    assert test_images.shape == (360, 1, 8, 8)
    assert (train_images.min().item(), train_images.max().item()) == (-1.0, 1.0)
    assert torch.bincount(torch.cat([train_labels, test_labels])).tolist() == np.bincount(load_digits().target).tolist()
    assert test_labels[:12].tolist() == FIRST_TEST_LABELS


FIRST_TEST_LABELS = [4, 0, 4, 3, 5, 5, 2, 7, 3, 7, 9, 9]


@pytest.mark.parametrize("make_task", TASKS)
def test_weights_are_those_of_the_seed(make_task: Callable[[], TrainingTask]) -> None:
    weights = [nn.utils.parameters_to_vector(make_task().build_model(seed).parameters()) for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("make_task", SMALL)
def test_gradient_does_not_depend_on_the_cut_into_micro_batches(make_task: Callable[[], TrainingTask]) -> None:
    task = make_task()
    model = task.build_model(0)
    whole = gradient(task, model, 1)
    assert torch.allclose(whole, gradient(task, model, 12), atol=1e-5)
    assert torch.allclose(whole, gradient(task, model, 7), atol=1e-5)  # 120 is not a multiple of 7


@pytest.mark.parametrize("make_task", TASKS)
def test_all_of_a_model_is_trained_parameters(make_task: Callable[[], TrainingTask]) -> None:
    """No running statistics: what the servers hold is the whole state."""
    assert list(make_task().build_model(0).buffers()) == []


@pytest.mark.parametrize("make_task", TASKS)
def test_learns(make_task: Callable[[], TrainingTask]) -> None:
    task = make_task()
    model, losses = train(task, n_steps=60)
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    assert task.evaluate is not None
    figures = task.evaluate(model)
    assert figures.keys() == {"test_accuracy", "test_loss"}
    assert 0.5 < figures["test_accuracy"] <= 1.0
    assert model.training  # as it was


def test_first_losses_of_the_mlp() -> None:
    """Golden losses: a change here is a change of what every digits job does."""
    _, losses = train(digits.mlp(), n_steps=30)
    assert losses[::10] == pytest.approx(MLP_LOSSES, rel=1e-3)


MLP_LOSSES = [2.6906, 0.69931, 0.43993]


def test_arguments_arrive() -> None:
    task = digits.resnet(channels=4, blocks=2, learning_rate=0.3, global_batch_size=24, micro_batches=6)
    assert (task.optimizer.learning_rate, task.global_batch_size, task.micro_batches) == (0.3, 24, 6)
    shallow, deep = (len(list(digits.resnet(blocks=blocks).build_model(0).parameters())) for blocks in (1, 2))
    assert shallow < deep


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(digits, "find_spec", lambda name: None if name == "sklearn" else find(name))
    with pytest.raises(TaskError, match=r"optimus-scheduler\[datasets\]"):
        digits.read_table()


def test_a_worker_does_not_pay_for_importing_scikit_learn() -> None:
    code = (
        "import sys; from optimus_workers.zoo.digits import cnn; cnn().n_examples; assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
