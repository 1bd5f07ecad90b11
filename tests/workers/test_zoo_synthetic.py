from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.workers.sampling import step_indices

from optimus_workers.task import TrainingTask
from optimus_workers.zoo import synthetic


@pytest.mark.parametrize("make_task", [synthetic.classification, synthetic.regression])
def test_learns(make_task: Callable[[], TrainingTask]) -> None:
    task = make_task()
    model = task.build_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.optimizer.learning_rate)
    losses = []
    for step in range(60):
        loss = task.loss(model, task.batch(step_indices(0, step, task.global_batch_size, task.n_examples)))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_shapes_are_those_asked_for() -> None:
    inputs, labels = synthetic.classification(n_examples=10, n_features=3, n_classes=2).batch(range(10))
    assert inputs.shape == (10, 3)
    assert labels.tolist() == [0, 1] * 5
    inputs, targets = synthetic.regression(n_examples=7, n_features=5).batch([6, 0])
    assert (inputs.shape, targets.shape) == ((2, 5), (2,))


def test_data_come_from_the_seed() -> None:
    first, again, other = (synthetic.clusters(20, 4, 2, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_test_set_is_drawn_from_the_same_clusters() -> None:
    train, test = (synthetic.clusters(4000, 2, 2, 3, draw=draw) for draw in (0, 1))
    assert not torch.equal(train[0], test[0])
    ours, theirs = (torch.stack([inputs[labels == k].mean(dim=0) for k in (0, 1)]) for inputs, labels in (train, test))
    assert torch.allclose(ours, theirs, atol=0.15)


def test_one_example_at_a_time() -> None:
    task = synthetic.classification(n_examples=5)
    inputs, labels = task.batch([2])
    one_input, one_label = task.dataset[2]
    assert torch.equal(inputs[0], one_input)
    assert labels[0] == one_label
