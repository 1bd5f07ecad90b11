"""Handwritten digits: 1,797 images of 8 × 8 pixels that come with scikit-learn (UCI ML hand-written digits).

`mlp`, `cnn` and `resnet` are the tasks (`optimus submit --task optimus_workers.zoo.digits:cnn`). Their defaults are
sized for many small processes on few cores; all of them end above 95 % test accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from optimus_workers.data.examples import Examples, TensorExamples
from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo import networks
from optimus_workers.zoo.networks import cross_entropy, metrics_on

SIDE = 8
N_CLASSES = 10
N_TEST = 360
"""About one fifth of the images."""
SPLIT_SEED = 20180423
"""Fixed, so that test figures of different jobs speak of the same images."""
_DATA_FILE = "datasets/data/digits.csv.gz"


def mlp(
    width: int = 384,
    depth: int = 3,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    global_batch_size: int = 120,
    micro_batches: int = 12,
) -> TrainingTask:
    """A perceptron: many parameters for little compute, so the parameter servers matter."""
    return _task(
        partial(networks.mlp, SIDE * SIDE, width, depth, N_CLASSES),
        OptimizerSpec(kind="sgd", learning_rate=learning_rate, momentum=momentum),
        global_batch_size,
        micro_batches,
    )


def cnn(
    channels: int = 24,
    learning_rate: float = 0.01,
    momentum: float = 0.0,
    global_batch_size: int = 120,
    micro_batches: int = 12,
) -> TrainingTask:
    """A small convolutional network: few parameters, more compute."""
    return _task(
        partial(networks.cnn, SIDE, SIDE, channels, N_CLASSES),
        OptimizerSpec(kind="sgd", learning_rate=learning_rate, momentum=momentum),
        global_batch_size,
        micro_batches,
    )


def resnet(
    channels: int = 8,
    blocks: int = 1,
    learning_rate: float = 0.002,
    weight_decay: float = 0.0,
    global_batch_size: int = 120,
    micro_batches: int = 12,
) -> TrainingTask:
    """A small residual network with group normalisation, trained by AdamW: the most compute per parameter."""
    return _task(
        partial(networks.resnet, channels, blocks, N_CLASSES),
        OptimizerSpec(kind="adamw", learning_rate=learning_rate, weight_decay=weight_decay),
        global_batch_size,
        micro_batches,
    )


def _task(
    model: Callable[[], nn.Module], optimizer: OptimizerSpec, global_batch_size: int, micro_batches: int
) -> TrainingTask:
    return TrainingTask(
        model=model,
        loss=cross_entropy,
        dataset=TensorExamples(training_examples),
        collate=TensorExamples.collate,
        optimizer=optimizer,
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
        evaluate=metrics_on(held_out_examples),
    )


def training_examples() -> Examples:
    """Images (1437, 1, 8, 8) in -1 to 1 and labels (1437,)."""
    images, labels = _shuffled()
    return images[N_TEST:], labels[N_TEST:]


def held_out_examples() -> Examples:
    """Images (360, 1, 8, 8) in -1 to 1 and labels (360,)."""
    images, labels = _shuffled()
    return images[:N_TEST], labels[:N_TEST]


@cache
def _shuffled() -> Examples:
    """All images and labels in the order that the split cuts."""
    table = read_table()  # (1797, 65): 64 pixels from 0 to 16, then the digit
    table = table[np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(table))]
    images = torch.from_numpy((table[:, :-1] / 8 - 1).astype(np.float32)).reshape(-1, 1, SIDE, SIDE)
    return images, torch.from_numpy(table[:, -1].astype(np.int64))


def read_table() -> NDArray[np.float64]:
    """The data as scikit-learn keeps it. Raises `TaskError` when scikit-learn is not installed.

    Its file is read without importing scikit-learn, which takes 1.5 s of CPU in each worker that starts.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise TaskError("the digits tasks need scikit-learn: pip install 'optimus-scheduler[datasets]'")
    path = Path(package.origin).parent / _DATA_FILE
    if path.is_file():
        return np.loadtxt(path, delimiter=",")
    return _imported_table()


def _imported_table() -> NDArray[np.float64]:
    """The same through scikit-learn's own function, should it ever move the file."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.float64)
