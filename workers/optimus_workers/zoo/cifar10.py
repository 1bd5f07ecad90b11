"""Image classification on CIFAR-10, from its published files in `directory`.

optimus submit --task optimus_workers.zoo.cifar10:resnet --set directory=/data/cifar --set depth=56
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from optimus_workers.data.augmentation import Change, Crop, Cutout, Flip, augmented
from optimus_workers.data.examples import Examples, TensorExamples, find
from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo.image_networks import Options, cifar_resnet, image_network
from optimus_workers.zoo.networks import cross_entropy, metrics_on

# --- the published files ---------------------------------------------------------------------------------------------
# Reads the "python version" (`cifar-10-batches-py/data_batch_1` ...) and the "binary version"
# (`cifar-10-batches-bin/data_batch_1.bin` ...). The former are pickles, which can run any code when they are read; here
# they are read by a reader that knows arrays and nothing else.

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


# --- the tasks -------------------------------------------------------------------------------------------------------

_training = cache(training_examples)
_held_out = cache(held_out_examples)


def resnet(
    directory: str,
    depth: int = 20,
    epochs: float = 182.0,
    learning_rate: float = 0.1,
    weight_decay: float = 1e-4,
    zero_gamma: bool = False,
    stochastic_depth: float = 0.0,
    cutout: int = 0,
    copies: int = 1,
    global_batch_size: int = 128,
    micro_batches: int = 4,
) -> TrainingTask:
    """ResNet of He et al. (CVPR 2016, section 4.2): 20, 32, 44, 56 or 110 layers, their schedule for `epochs` epochs.

    `cutout`: side of the blanked square, 0 for none; `copies`: versions of each example in a batch.
    """
    options = Options(zero_gamma=zero_gamma, stochastic_depth=stochastic_depth)
    return _task(
        partial(cifar_resnet, depth, N_CLASSES, options),
        Recipe(directory, epochs, learning_rate, weight_decay, cutout, copies),
        global_batch_size,
        micro_batches,
    )


def network(
    directory: str,
    name: str = "resnet-18-cifar",
    epochs: float = 100.0,
    learning_rate: float = 0.1,
    weight_decay: float = 5e-4,
    cutout: int = 0,
    copies: int = 1,
    global_batch_size: int = 128,
    micro_batches: int = 4,
) -> TrainingTask:
    """Any image network of the zoo that takes 32 × 32 pixels, by its name."""
    recipe = Recipe(directory, epochs, learning_rate, weight_decay, cutout, copies)
    return _task(partial(image_network(name), N_CLASSES), recipe, global_batch_size, micro_batches)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train: where the data are, and the schedule."""

    directory: str
    epochs: float
    learning_rate: float
    weight_decay: float
    cutout: int
    copies: int

    def __post_init__(self) -> None:
        if self.epochs <= 0 or self.cutout < 0:
            raise TaskError("epochs must be above 0 and cutout not below 0")

    def learning_rate_at(self, _step: int, epoch: float) -> float:
        """A tenth after half of the epochs, a hundredth after three quarters."""
        return 1.0 if epoch < self.epochs / 2 else 0.1 if epoch < 0.75 * self.epochs else 0.01


def _task(model: Callable[[], nn.Module], recipe: Recipe, global_batch_size: int, micro_batches: int) -> TrainingTask:
    changes: list[Change] = [Crop(4), Flip(), *([Cutout(recipe.cutout)] if recipe.cutout else [])]

    def training() -> Examples:
        return _training(recipe.directory)

    def held_out() -> Examples:
        return _held_out(recipe.directory)

    return TrainingTask(
        model=model,
        loss=cross_entropy,
        dataset=TensorExamples(training),
        collate=augmented(TensorExamples.collate, changes, recipe.copies),
        optimizer=OptimizerSpec(learning_rate=recipe.learning_rate, momentum=0.9, weight_decay=recipe.weight_decay),
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
        learning_rate_at=recipe.learning_rate_at,
        evaluate=metrics_on(held_out),
    )
