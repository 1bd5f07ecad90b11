"""Image classification on CIFAR-10, from its published files in `directory` (see `data.cifar10`).

optimus submit --task optimus_workers.zoo.cifar10:resnet --set directory=/data/cifar --set depth=56
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from torch import nn

from optimus_workers.data import cifar10
from optimus_workers.data.augmentation import Change, Crop, Cutout, Flip, augmented
from optimus_workers.data.examples import Examples, TensorExamples
from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.zoo.image_networks import Options, cifar_resnet, image_network
from optimus_workers.zoo.networks import cross_entropy, metrics_on

_training = cache(cifar10.training_examples)
_held_out = cache(cifar10.held_out_examples)


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
        partial(cifar_resnet, depth, cifar10.N_CLASSES, options),
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
    return _task(partial(image_network(name), cifar10.N_CLASSES), recipe, global_batch_size, micro_batches)


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
