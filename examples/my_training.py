"""Your own training code for Optimus: plain PyTorch, and one function that returns a TrainingTask.

Submit it from this folder:  optimus submit --task my_training:task --watch
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from optimus_workers.task import OptimizerSpec, TrainingTask


class NoisyWave(Dataset[tuple[Tensor, Tensor]]):
    """Points of a wave, measured with an error of 0.1: put your own dataset here."""

    def __init__(self, n_examples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = 4 * torch.rand(n_examples, 1, generator=generator) - 2
        self.y = torch.sin(3 * self.x) + 0.1 * torch.randn(n_examples, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over the batch's examples."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Figures for the job's result; called once, at the end."""
    test = NoisyWave(n_examples=500, seed=1)
    with torch.no_grad():
        return {"test_loss": loss(model, (test.x, test.y)).item()}


def task(width: int = 64, learning_rate: float = 0.005) -> TrainingTask:
    """What Optimus calls in each worker and server; `--set width=128` arrives here."""
    return TrainingTask(
        model=lambda: nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        ),
        loss=loss,
        dataset=NoisyWave(n_examples=2000, seed=0),
        optimizer=OptimizerSpec(kind="adamw", learning_rate=learning_rate, weight_decay=0.0),
        global_batch_size=240,
        evaluate=evaluate,
    )
