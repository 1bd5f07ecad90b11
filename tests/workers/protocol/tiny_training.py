"""A training task so small that the protocol, not the arithmetic, takes the time. Loaded by the tests' workers."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from optimus_workers.task import OptimizerSpec, TorchOptimizer, TrainingTask
from optimus_workers.task.parameter_groups import named_groups

N_EXAMPLES = 240
BATCH_SIZE = 24
MICRO_BATCHES = 4
"""Not divisible by three workers: their shares differ."""


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(N_EXAMPLES, 8, generator=generator)
    weights = torch.randn(8, 3, generator=generator)
    return TensorDataset(inputs, (inputs @ weights).argmax(1))


class LeavingDataset(TensorDataset):
    """Ends whatever process reads an example of it."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        sys.exit(0)


def network(*, batch_norm: bool = False, dropout: bool = True) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(8, 37)]
    if batch_norm:
        layers.append(nn.BatchNorm1d(37))
    layers.append(nn.Tanh())
    if dropout:
        layers.append(nn.Dropout(0.1))
    return nn.Sequential(*layers, nn.Linear(37, 3))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def loss_in_parts(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """The same; each half is a backward pass within the backward pass, so gradients are made in two parts."""
    inputs, labels = batch
    half = len(labels) // 2
    total = torch.zeros(())
    for part in (slice(0, half), slice(half, None)):
        logits = checkpoint(model, inputs[part].clone().requires_grad_(), use_reentrant=True)
        total = total + nn.functional.cross_entropy(logits, labels[part], reduction="sum")
    return total / len(labels)


def accuracy(model: nn.Module) -> dict[str, float]:
    inputs, labels = dataset().tensors
    return {"accuracy": float((model(inputs).argmax(1) == labels).float().mean())}


LAST_LAYER_RATE = 0.1
SCHEDULES: dict[str, Callable[[int, float], float]] = {
    "inverse": lambda step, _epoch: 1.0 / (1.0 + 0.01 * step),
    "cosine": lambda step, _epoch: 0.5 * (1.0 + math.cos(math.pi * step / 60)),
    "step": lambda _step, epoch: 0.1 ** int(epoch / 2.0),
}


def groups(model: nn.Module) -> list[dict[str, Any]]:
    assert isinstance(model, nn.Sequential)
    return named_groups(model, {f"{len(model) - 1}.*": {"lr": LAST_LAYER_RATE}}, decay_vectors=False)


def taken_first(path: Path) -> bool:
    """Whether the file was there, and nobody else took it away."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def make(
    kind: str = "sgd",
    momentum: float = 0.9,
    batch_norm: bool = False,
    dropout: bool = True,
    step_seconds: float = 0.0,
    fails_at: int = -1,
    hangs_if: str | None = None,
    nesterov: bool = False,
    learning_rate: float = 0.05,
    max_gradient_norm: float | None = None,
    grouped: bool = False,
    prefetch: int = 0,
    in_parts_from: int | None = None,
    exits_in: str | None = None,
    n_figures: int = 1,
    schedule: str = "inverse",
    plateau: bool = False,
) -> TrainingTask:
    """`grouped`: the last layer has a learning rate of its own, and what is not a matrix is not decayed.

    `step_seconds`: how long each slot is made to take; `fails_at`: the slot whose loss raises, by count.

    `hangs_if`: a file; the first process that finds it takes it away and hangs for ever.
    """
    # `in_parts_from`: the slot, by count, from which on gradients are made in two parts.
    # `exits_in`: where `sys.exit(0)` is called: make, model, dataset, loss or evaluate.
    if exits_in == "make":
        sys.exit(0)
    calls = 0

    def slow_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if exits_in == "loss":
            sys.exit(0)
        if calls == fails_at:
            raise ValueError("the user's mistake")
        if hangs_if and taken_first(Path(hangs_if)):
            threading.Event().wait()
        if step_seconds:
            time.sleep(step_seconds)
        in_parts = in_parts_from is not None and calls >= in_parts_from
        return loss_in_parts(model, batch) if in_parts else loss(model, batch)

    def make_network() -> nn.Module:
        if exits_in == "model":
            sys.exit(0)
        return network(batch_norm=batch_norm, dropout=dropout)

    def figures(model: nn.Module) -> dict[str, float]:
        if exits_in == "evaluate":
            sys.exit(0)
        return accuracy(model) | {f"figure_{number}": 0.0 for number in range(1, n_figures)}

    return TrainingTask(
        model=make_network,
        loss=slow_loss,
        dataset=LeavingDataset(*dataset().tensors) if exits_in == "dataset" else dataset(),
        optimizer=OptimizerSpec(
            kind=kind,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=1e-3,
            max_gradient_norm=max_gradient_norm,
        )
        if kind in ("sgd", "adamw")
        else TorchOptimizer(getattr(torch.optim, kind), learning_rate, max_gradient_norm=max_gradient_norm),
        # Most epochs are bad ones by this measure, so that the rate falls within a test.
        plateau=partial(ReduceLROnPlateau, factor=0.5, patience=1, threshold=0.2) if plateau else None,
        global_batch_size=BATCH_SIZE,
        micro_batches=MICRO_BATCHES,
        learning_rate_at=SCHEDULES[schedule],
        prefetch=prefetch,
        parameter_groups=groups if grouped else None,
        evaluate=figures,
    )
