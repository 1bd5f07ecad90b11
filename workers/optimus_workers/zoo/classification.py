"""What the classifiers of the zoo share: examples held in tensors, the loss, and the figures of a test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

Examples = tuple[Tensor, Tensor]
"""Inputs (n, ...) and class numbers (n,)."""


class TensorExamples:
    """A map-style dataset in memory, read by `load` at the first use: servers need the model only.

    Like the datasets that torch's own loader knows, it gives many examples at once by `__getitems__`; they are a batch
    already, so its `collate` has nothing to do.
    """

    def __init__(self, load: Callable[[], Examples]) -> None:
        self._load = load

    def __len__(self) -> int:
        return len(self._examples[1])

    def __getitem__(self, index: int) -> Examples:
        inputs, labels = self._examples
        return inputs[index], labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Examples:
        inputs, labels = self._examples
        chosen = torch.tensor(indices, dtype=torch.int64)
        return inputs[chosen], labels[chosen]

    @staticmethod
    def collate(batch: Examples) -> Examples:
        """What `__getitems__` gave, as it is."""
        return batch

    @cached_property
    def _examples(self) -> Examples:
        return self._load()


def cross_entropy(model: nn.Module, batch: Examples) -> Tensor:
    """Mean cross-entropy of the model's logits, a scalar."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def figures_on(load: Callable[[], Examples]) -> Callable[[nn.Module], dict[str, float]]:
    """A function of the model that gives `test_accuracy` (0 to 1) and `test_loss` on the examples of `load`."""

    def evaluate(model: nn.Module) -> dict[str, float]:
        inputs, labels = load()
        was_training = model.training
        model.eval()
        with torch.no_grad():
            logits = model(inputs)  # (n, n_classes)
        model.train(was_training)
        return {
            "test_accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
            "test_loss": functional.cross_entropy(logits, labels).item(),
        }

    return evaluate
