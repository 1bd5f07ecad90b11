"""Changing training images at random: crops, mirror images, holes, and several versions of each example in a batch.

All of it draws from torch's global generator, which a worker seeds for each micro-batch of each step: the same images
come out whichever worker computes the micro-batch, and again when a step is repeated. Wrap a task's collate function:

    collate=augmented(TensorExamples.collate, [Crop(4), Flip(), Cutout(8)], copies=2)

References: DeVries & Taylor 2017 (cutout); Hoffer et al., CVPR 2020 (batch augmentation: M versions of each example).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from optimus_workers.data.examples import Examples
from optimus_workers.errors import TaskError

Change = Callable[[Tensor], Tensor]
"""Images (n, channels, height, width) to as many of the same size."""


@dataclass(frozen=True, slots=True)
class Crop:
    """Shift each image by up to `padding` pixels either way; zeros come in at the edges."""

    padding: int = 4

    def __call__(self, images: Tensor) -> Tensor:
        n, _, height, width = images.shape
        padded = functional.pad(images, (self.padding,) * 4)
        tops = torch.randint(2 * self.padding + 1, (n, 1)) + torch.arange(height)  # (n, height)
        lefts = torch.randint(2 * self.padding + 1, (n, 1)) + torch.arange(width)  # (n, width)
        picked = torch.arange(n).view(n, 1, 1)
        # Advanced indices on both sides of the channels move them to the end.
        return padded[picked, :, tops.unsqueeze(2), lefts.unsqueeze(1)].permute(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Flip:
    """Mirror each image, left to right, with this probability."""

    probability: float = 0.5

    def __call__(self, images: Tensor) -> Tensor:
        mirrored = torch.rand(len(images), 1, 1, 1) < self.probability
        return torch.where(mirrored, images.flip(3), images)


@dataclass(frozen=True, slots=True)
class Cutout:
    """Blank a square of `side` pixels round a random centre in each image; it may stand out over the edge."""

    side: int = 8

    def __call__(self, images: Tensor) -> Tensor:
        n, _, height, width = images.shape
        rows = _inside(torch.randint(height, (n, 1)), torch.arange(height), self.side)  # (n, height)
        columns = _inside(torch.randint(width, (n, 1)), torch.arange(width), self.side)  # (n, width)
        hole = rows.unsqueeze(2) & columns.unsqueeze(1)  # (n, height, width)
        return images.masked_fill(hole.unsqueeze(1), 0.0)


def _inside(centre: Tensor, place: Tensor, side: int) -> Tensor:
    return (place >= centre - side // 2) & (place < centre - side // 2 + side)


@dataclass(frozen=True, slots=True)
class Augmented:
    """A collate function that changes images after another one has put them together."""

    collate: Callable[[Any], Examples]
    changes: tuple[Change, ...]
    copies: int

    def __call__(self, examples: Any) -> Examples:
        images, labels = self.collate(examples)
        if self.copies > 1:
            images, labels = images.repeat_interleave(self.copies, 0), labels.repeat_interleave(self.copies, 0)
        for change in self.changes:
            images = change(images)
        return images, labels


def augmented(collate: Callable[[Any], Examples], changes: Sequence[Change], copies: int = 1) -> Augmented:
    """`collate` with the `changes` in order, on `copies` of each example: M times the work for each step.

    Raises `TaskError` when `copies` is below 1.
    """
    if copies < 1:
        raise TaskError(f"copies must be at least 1, not {copies}")
    return Augmented(collate, tuple(changes), copies)
