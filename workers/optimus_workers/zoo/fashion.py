"""Image classification on Fashion-MNIST (or MNIST), from its idx files in `directory` (see `data.fashion_mnist`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from torch import nn

from optimus_workers.data import fashion_mnist
from optimus_workers.data.examples import TensorExamples
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo import networks
from optimus_workers.zoo.networks import cross_entropy, metrics_on

_training = cache(fashion_mnist.training_examples)
_held_out = cache(fashion_mnist.held_out_examples)


def mlp(
    directory: str,
    width: int = 256,
    depth: int = 2,
    learning_rate: float = 0.05,
    global_batch_size: int = 128,
    micro_batches: int = 12,
) -> TrainingTask:
    """A perceptron."""
    model = partial(networks.mlp, fashion_mnist.SIDE**2, width, depth, fashion_mnist.N_CLASSES)
    return _task(model, directory, learning_rate, global_batch_size, micro_batches)


def cnn(
    directory: str,
    channels: int = 16,
    learning_rate: float = 0.02,
    global_batch_size: int = 128,
    micro_batches: int = 12,
) -> TrainingTask:
    """A small convolutional network."""
    model = partial(networks.cnn, fashion_mnist.SIDE, fashion_mnist.SIDE, channels, fashion_mnist.N_CLASSES)
    return _task(model, directory, learning_rate, global_batch_size, micro_batches)


def _task(
    model: Callable[[], nn.Module], directory: str, learning_rate: float, global_batch_size: int, micro_batches: int
) -> TrainingTask:
    return TrainingTask(
        model=model,
        loss=cross_entropy,
        dataset=TensorExamples(partial(_training, directory)),
        collate=TensorExamples.collate,
        optimizer=OptimizerSpec(learning_rate=learning_rate, momentum=0.9),
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
        evaluate=metrics_on(partial(_held_out, directory)),
    )
