"""CIFAR-10: 60,000 colour images of 32 × 32 pixels in ten classes (Krizhevsky 2009), from the published files.

Reads the "python version" (`cifar-10-batches-py/data_batch_1` ...) and the "binary version"
(`cifar-10-batches-bin/data_batch_1.bin` ...). The former are pickles, which can run any code when they are read; here
they are read by a reader that knows arrays and nothing else.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from optimus_workers.data.examples import Examples, find
from optimus_workers.errors import TaskError

N_CLASSES = 10
SHAPE = (3, 32, 32)
MEAN = (0.4914, 0.4822, 0.4465)
"""Mean of the training images, by colour, with pixels from 0 to 1."""
DEVIATION = (0.2470, 0.2435, 0.2616)
_WHAT = "CIFAR-10"
_PIXELS = 3 * 32 * 32
_TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = ("test_batch",)


def training_examples(directory: str | Path) -> Examples:
    """Normalised images (50000, 3, 32, 32) and labels (50000,). Raises `TaskError` for missing or damaged files."""
    return _read(directory, _TRAINING)


def held_out_examples(directory: str | Path) -> Examples:
    """The 10,000 test images and labels."""
    return _read(directory, _TEST)


def _read(directory: str | Path, names: tuple[str, ...]) -> Examples:
    try:
        paths, read = find(directory, ["cifar-10-batches-py"], names, _WHAT), _read_python
    except TaskError as error:
        binary = [f"{name}.bin" for name in names]
        try:
            paths, read = find(directory, ["cifar-10-batches-bin"], binary, _WHAT), _read_binary
        except TaskError:
            raise error from None
    parts = [read(path) for path in paths]
    pixels = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    return normalised(pixels), torch.from_numpy(labels.astype(np.int64))


def normalised(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """Bytes (n, 3072) to images (n, 3, 32, 32) with mean 0 and deviation 1 in each colour."""
    images = torch.from_numpy(pixels).reshape(-1, *SHAPE).to(torch.float32).div_(255)
    return images.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1))


def _read_python(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    with path.open("rb") as file:
        try:
            batch: Any = _ArraysOnly(file).load()
            return _checked(path, np.asarray(batch[b"data"]), np.asarray(batch[b"labels"]))
        # What a damaged file raises depends on where it is damaged.
        except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise TaskError(f"{_WHAT}: {path} is damaged ({type(error).__name__}: {error})") from error


class _ArraysOnly(pickle.Unpickler):
    """Makes numpy arrays, and refuses to look up anything else that a pickle may name."""

    _ALLOWED = frozenset({("_reconstruct", "multiarray"), ("ndarray", "numpy"), ("dtype", "numpy")})

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str, /) -> Any:
        # numpy's own module has been called numpy.core.multiarray and numpy._core.multiarray.
        if not module.startswith("numpy") or (name, module.rpartition(".")[2]) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in this data set")
        return _reconstruct() if name == "_reconstruct" else getattr(np, name)


def _reconstruct() -> Any:
    """The function that numpy's own pickles name, wherever this numpy has it."""
    return np.empty(0).__reduce__()[0]


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of one label byte and 3,072 pixels."""
    rows = np.fromfile(path, dtype=np.uint8)
    if rows.size == 0 or rows.size % (1 + _PIXELS):
        raise TaskError(f"{_WHAT}: {path} is damaged (its size is no multiple of {1 + _PIXELS} bytes)")
    table = rows.reshape(-1, 1 + _PIXELS)
    return _checked(path, table[:, 1:], table[:, 0])


def _checked(path: Path, pixels: Any, labels: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS or labels.shape != pixels.shape[:1]:
        raise TaskError(f"{_WHAT}: {path} does not hold rows of {_PIXELS} bytes with a label each")
    labels = labels.astype(np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < N_CLASSES:
        raise TaskError(f"{_WHAT}: {path} has labels outside 0 to {N_CLASSES - 1}")
    return pixels, labels
