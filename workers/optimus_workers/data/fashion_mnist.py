"""Fashion-MNIST: 70,000 grey images of 28 × 28 pixels in ten classes (Xiao et al. 2017), from its idx files.

MNIST itself has the same files and is read as well. Packed (.gz) or not.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from optimus_workers.data.examples import Examples, find
from optimus_workers.errors import TaskError

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
