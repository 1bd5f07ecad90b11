"""A training task of 25 million parameters that computes next to nothing: for `membership_change`."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from optimus_workers.task import OptimizerSpec, TrainingTask

WIDTH = 5000
PAUSE_SECONDS = 0.2
"""Of each micro-batch, so that newcomers find time to start while others train."""


def make() -> TrainingTask:
    """One linear layer with momentum, four micro-batches of one example a step."""
    examples = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))
    return TrainingTask(
        model=lambda: nn.Linear(WIDTH, WIDTH),
        loss=_loss,
        dataset=TensorDataset(examples),
        optimizer=OptimizerSpec(learning_rate=1e-4, momentum=0.9),
        global_batch_size=4,
        micro_batches=4,
    )


def _loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    time.sleep(PAUSE_SECONDS)
    output: Tensor = model(batch[0])
    return output.square().mean()
