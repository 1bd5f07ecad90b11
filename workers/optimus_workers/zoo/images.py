"""Made-up colour images of any size, to train any image network of the zoo on: for benchmarks and trials.

optimus submit --task optimus_workers.zoo.images:classification --set network=resnet-50 --set side=224
"""

from __future__ import annotations

from functools import cache, partial

import torch

from optimus_workers.data.examples import Examples, TensorExamples
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo.image_networks import image_network
from optimus_workers.zoo.networks import cross_entropy, metrics_on


def classification(
    network: str = "resnet-18-cifar",
    n_examples: int = 512,
    side: int = 32,
    n_classes: int = 10,
    learning_rate: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    global_batch_size: int = 48,
    micro_batches: int = 12,
    data_seed: int = 0,
) -> TrainingTask:
    """One faint pattern per class under noise. `network`: a name of `image_networks.IMAGE_NETWORKS`."""
    load = partial(patterns, n_examples, side, n_classes, data_seed)
    return TrainingTask(
        model=partial(image_network(network), n_classes),
        loss=cross_entropy,
        dataset=TensorExamples(load),
        collate=TensorExamples.collate,
        optimizer=OptimizerSpec(learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay),
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
        evaluate=metrics_on(partial(patterns, 256, side, n_classes, data_seed, draw=1)),
    )


@cache
def patterns(n_examples: int, side: int, n_classes: int, seed: int, *, draw: int = 0) -> Examples:
    """Images (n_examples, 3, side, side) and class numbers (n_examples,); another `draw` gives others."""
    shapes = torch.randn(n_classes, 3, side, side, generator=torch.Generator().manual_seed(seed * 1009))
    labels = torch.arange(n_examples) % n_classes
    noise = torch.randn(n_examples, 3, side, side, generator=torch.Generator().manual_seed(seed * 1009 + 1 + draw))
    return noise.add_(shapes[labels], alpha=0.5), labels
