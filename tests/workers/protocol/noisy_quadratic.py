"""A task whose gradients' noise is known: the distance to the mean of examples drawn around a point."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from optimus_workers.task import OptimizerSpec, TrainingTask

N_EXAMPLES, N_DIMENSIONS, BATCH_SIZE = 2048, 256, 32
MEAN_SQUARE = 16.0
"""|G|² at the beginning."""


def examples() -> Tensor:
    """Their mean has exactly `MEAN_SQUARE`; each is one unit of noise away from it in every direction."""
    noise = torch.randn(N_EXAMPLES, N_DIMENSIONS, generator=torch.Generator().manual_seed(2))
    mean = torch.full((N_DIMENSIONS,), (MEAN_SQUARE / N_DIMENSIONS) ** 0.5)
    return noise - noise.mean(0) + mean


def variance() -> float:
    """tr(Σ) of one example's gradient."""
    return float(examples().var(0).sum())


class Point(nn.Module):
    """The parameters; begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(N_DIMENSIONS))

    def forward(self, inputs: Tensor) -> Tensor:
        return 0.5 * (self.at - inputs).square().sum(1).mean()


def make(batch_size: int = BATCH_SIZE, max_gradient_norm: float | None = None) -> TrainingTask:
    return TrainingTask(
        model=Point,
        loss=lambda model, batch: model(batch[0]),
        dataset=TensorDataset(examples()),
        optimizer=OptimizerSpec(kind="sgd", learning_rate=0.05, max_gradient_norm=max_gradient_norm),
        global_batch_size=batch_size,
    )
