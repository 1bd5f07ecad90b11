"""Made-up data of any size and shape, for tests and benchmarks: nothing to download, known to be learnable."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.data.examples import Examples, TensorExamples
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo import networks
from optimus_workers.zoo.networks import cross_entropy, metrics_on


def classification(
    n_examples: int = 256,
    n_features: int = 8,
    n_classes: int = 4,
    width: int = 16,
    depth: int = 1,
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    global_batch_size: int = 48,
    micro_batches: int = 12,
    data_seed: int = 0,
) -> TrainingTask:
    """Gaussian clusters, one per class, and a perceptron of `width` and `depth` that tells them apart."""
    load = partial(clusters, n_examples, n_features, n_classes, data_seed)
    return TrainingTask(
        model=partial(networks.mlp, n_features, width, depth, n_classes),
        loss=cross_entropy,
        dataset=TensorExamples(load),
        collate=TensorExamples.collate,
        optimizer=OptimizerSpec(learning_rate=learning_rate, momentum=momentum),
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
        evaluate=metrics_on(partial(clusters, n_examples, n_features, n_classes, data_seed, draw=1)),
    )


def regression(
    n_examples: int = 256,
    n_features: int = 8,
    noise: float = 0.1,
    learning_rate: float = 0.1,
    global_batch_size: int = 48,
    micro_batches: int = 12,
    data_seed: int = 0,
) -> TrainingTask:
    """A linear law with Gaussian noise; the least mean squared error is about `noise` squared."""
    return TrainingTask(
        model=partial(nn.Linear, n_features, 1),
        loss=_mean_squared_error,
        dataset=TensorExamples(partial(linear_law, n_examples, n_features, noise, data_seed)),
        collate=TensorExamples.collate,
        optimizer=OptimizerSpec(learning_rate=learning_rate),
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
    )


@cache
def clusters(n_examples: int, n_features: int, n_classes: int, seed: int, *, draw: int = 0) -> Examples:
    """Inputs (n_examples, n_features) round one random centre per class, and class numbers (n_examples,).

    Another `draw` gives other examples of the same clusters.
    """
    centres = 2 * torch.randn(n_classes, n_features, generator=_generator(seed, 0))
    labels = torch.arange(n_examples) % n_classes
    return centres[labels] + torch.randn(n_examples, n_features, generator=_generator(seed, 1 + draw)), labels


@cache
def linear_law(n_examples: int, n_features: int, noise: float, seed: int) -> Examples:
    """Inputs x (n_examples, n_features) and targets x·w + noise (n_examples,), with weights w drawn once."""
    generator = _generator(seed, 0)
    weights = torch.randn(n_features, generator=generator)
    inputs = torch.randn(n_examples, n_features, generator=generator)
    return inputs, inputs @ weights + noise * torch.randn(n_examples, generator=generator)


def _mean_squared_error(model: nn.Module, batch: Examples) -> Tensor:
    inputs, targets = batch
    return functional.mse_loss(model(inputs).squeeze(1), targets)


def _generator(seed: int, stream: int) -> torch.Generator:
    """Independent streams of one seed."""
    return torch.Generator().manual_seed(seed * 1009 + stream)
