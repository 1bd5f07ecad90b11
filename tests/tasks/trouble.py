"""Training that gets into trouble, for tests of what its owner is told."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from optimus_workers.task import TrainingTask
from optimus_workers.zoo import digits


def diverges(after: int = 5) -> TrainingTask:
    """A perceptron whose loss is NaN from its worker's forward pass number `after` on."""
    task, passes = digits.mlp(), [0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        passes[0] += 1
        return task.loss(model, batch) * (float("nan") if passes[0] > after else 1.0)

    return replace(task, loss=loss)


def hangs(after: int = 5) -> TrainingTask:
    """A perceptron whose forward pass number `after` in a process never ends."""
    task, passes = digits.mlp(), [0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        passes[0] += 1
        if passes[0] > after:
            threading.Event().wait()
        return task.loss(model, batch)

    return replace(task, loss=loss)
