"""Image classification on Fashion-MNIST (or MNIST), from its idx files in `directory`."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from optimus_workers.data.examples import Examples, TensorExamples, find
from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo import networks
from optimus_workers.zoo.networks import cross_entropy, metrics_on

# --- the published files ---------------------------------------------------------------------------------------------
# MNIST itself has the same files and is read as well. Packed (.gz) or not.

N_CLASSES = 10
SIDE = 28
MEAN, DEVIATION = 0.2860, 0.3530
"""Mean and deviation of the training images, with pixels from 0 to 1."""
_WHAT = "Fashion-MNIST"
_FOLDERS = ("FashionMNIST/raw", "raw")
_UNSIGNED_BYTES = 8
_MAX_BYTES = 2**30
"""The largest real file has 47 million."""


def training_examples(directory: str | Path) -> Examples:
    """Normalised images (60000, 1, 28, 28) and labels (60000,). Raises `TaskError` for missing or damaged files."""
    return _read(directory, "train")


def held_out_examples(directory: str | Path) -> Examples:
    """The 10,000 test images and labels."""
    return _read(directory, "t10k")


def _read(directory: str | Path, prefix: str) -> Examples:
    names = [f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"]
    images_path, labels_path = find(directory, _FOLDERS, names, _WHAT)
    pixels, labels = read_idx(images_path), read_idx(labels_path)
    if pixels.ndim != 3 or pixels.shape[1:] != (SIDE, SIDE) or labels.shape != pixels.shape[:1]:
        raise TaskError(f"{_WHAT}: {images_path} and {labels_path} do not hold images of {SIDE} × {SIDE} with labels")
    images = torch.from_numpy(pixels.astype(np.float32)).unsqueeze(1).div_(255).sub_(MEAN).div_(DEVIATION)
    return images, torch.from_numpy(labels.astype(np.int64))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes from an idx file: two zero bytes, type, number of dimensions, their sizes, the values.

    Raises `TaskError` when the file is not what it says, before memory is taken for it.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTES or not 1 <= head[3] <= 4:
                raise TaskError(f"{_WHAT}: {path} is not an idx file of bytes")
            shape = tuple(int(size) for size in np.frombuffer(file.read(4 * head[3]), dtype=">u4"))
            size = math.prod(shape)
            if len(shape) != head[3] or size > _MAX_BYTES:
                raise TaskError(f"{_WHAT}: {path} is damaged: sizes {shape}")
            values = file.read(size + 1)
    except (OSError, EOFError) as error:  # gzip's complaints are these
        raise TaskError(f"{_WHAT}: cannot read {path}: {error}") from error
    if len(values) != size:
        raise TaskError(f"{_WHAT}: {path} is damaged: sizes {shape} need {size} bytes, which is not what it has")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


# --- the tasks -------------------------------------------------------------------------------------------------------

_training = cache(training_examples)
_held_out = cache(held_out_examples)


def mlp(
    directory: str,
    width: int = 256,
    depth: int = 2,
    learning_rate: float = 0.05,
    global_batch_size: int = 128,
    micro_batches: int = 12,
) -> TrainingTask:
    """A perceptron."""
    model = partial(networks.mlp, SIDE**2, width, depth, N_CLASSES)
    return _task(model, directory, learning_rate, global_batch_size, micro_batches)


def cnn(
    directory: str,
    channels: int = 16,
    learning_rate: float = 0.02,
    global_batch_size: int = 128,
    micro_batches: int = 12,
) -> TrainingTask:
    """A small convolutional network."""
    model = partial(networks.cnn, SIDE, SIDE, channels, N_CLASSES)
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
