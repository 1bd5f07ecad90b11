"""The tasks of the zoo train: their loss falls, and nothing depends on how a batch is shared."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.workers.sampling import step_indices
from torch import nn

from optimus_workers.data.examples import find
from optimus_workers.errors import TaskError
from optimus_workers.task import TrainingTask
from optimus_workers.worker.compute import compute_micro_batches, sync_micro_batches
from optimus_workers.worker.flat_model import FlatModel
from optimus_workers.zoo import cifar10, images, ranking, text

TASKS: dict[str, Callable[[], TrainingTask]] = {
    "lstm": lambda: text.lstm(width=32, depth=1, learning_rate=1e-2),
    "transformer": lambda: text.transformer(width=32, depth=1, learning_rate=1e-2),
    "two_tower": lambda: ranking.two_tower(n_examples=512, vocabulary=200, width=16),
    # A rate for Adam: with that for SGD the first steps go up or down by rounding errors.
    "cifar-resnet-20": lambda: images.classification(
        "cifar-resnet-20", n_examples=96, side=16, global_batch_size=24, learning_rate=0.003
    ),
}


@pytest.fixture(params=sorted(TASKS))
def task(request: pytest.FixtureRequest) -> TrainingTask:
    return TASKS[request.param]()


def losses_of(task: TrainingTask, n_steps: int) -> list[float]:
    """Plain single-process training with Adam."""
    model = task.build_model(seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.optimizer.learning_rate)
    losses = []
    for step in range(n_steps):
        torch.manual_seed(step)
        loss = task.loss(model, task.batch(step_indices(0, step, task.global_batch_size, task.n_examples)))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_loss_falls(task: TrainingTask) -> None:
    losses = losses_of(task, 20)
    assert min(losses[-3:]) < 0.9 * losses[0]


def test_evaluation_gives_finite_figures(task: TrainingTask) -> None:
    assert task.evaluate is not None
    model = task.build_model(0).eval()
    with torch.no_grad():
        figures = task.evaluate(model)
    assert figures
    assert all(torch.isfinite(torch.tensor(value)) for value in figures.values())


def test_a_step_is_the_same_however_it_is_shared(task: TrainingTask) -> None:
    """Also with batch norm: its statistics, and the running ones, are those of the fixed slots."""

    def pushed(cuts: list[int]) -> torch.Tensor:
        total: torch.Tensor | None = None
        for first, end in pairwise(cuts):
            flat = FlatModel(task.build_model(seed=0))
            compute_micro_batches(task, flat, sync_micro_batches(task, 0, 0, first, end), lambda: None)
            total = flat.push.clone() if total is None else total + flat.push
        assert total is not None
        return total

    alone, shared = pushed([0, 12]), pushed([0, 3, 4, 12])
    assert torch.allclose(alone, shared, rtol=1e-4, atol=1e-6)


def test_text_of_a_file(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_bytes(b"All work and no play makes Jack a dull boy. " * 60)
    task = text.lstm(str(book), length=10)
    first, second = task.dataset[0], task.dataset[1]
    assert bytes(first.tolist()) == b"All work an"
    assert first[-1] == second[0]  # what is predicted last is read first by the next
    held_out = text.Windows(str(book), 10, held_out=True)
    assert 0 < len(held_out) < len(task.dataset)


def test_texts_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("too short")
    with pytest.raises(TaskError, match="at least 1000"):
        len(text.lstm(str(tmp_path / "short")).dataset)
    with pytest.raises(TaskError, match="cannot read the text"):
        len(text.lstm(str(tmp_path / "absent")).dataset)


def test_cifar_schedule_falls_twice(tmp_path: Path) -> None:
    task = cifar10.resnet(str(tmp_path), epochs=100)
    assert task.learning_rate_at is not None
    assert [task.learning_rate_at(0, epoch) for epoch in (0, 49.9, 50, 74.9, 75, 200)] == [1, 1, 0.1, 0.1, 0.01, 0.01]
    with pytest.raises(TaskError, match="data_batch_1, data_batch_2"):
        len(task.dataset)


def test_a_made_up_language_can_be_learned_but_not_guessed() -> None:
    made_up = text.made_up_text()
    assert len(set(made_up.tolist())) == 16
    pairs = set(zip(made_up[:-2].tolist(), made_up[1:-1].tolist(), made_up[2:].tolist(), strict=True))
    before = {(first, second) for first, second, _ in pairs}
    assert len(pairs) <= 3 * len(before)


def test_packed_files_are_found(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        file.write(b"x")
    assert find(tmp_path, [], ["a"], "data") == [tmp_path / "a.gz"]


def test_models_can_be_built_twice_the_same() -> None:
    def weights(model: nn.Module) -> torch.Tensor:
        return torch.cat([part.flatten() for part in model.parameters()])

    for make in TASKS.values():
        task = make()
        assert torch.equal(weights(task.build_model(3)), weights(task.build_model(3)))
        assert not torch.equal(weights(task.build_model(3)), weights(task.build_model(4)))
