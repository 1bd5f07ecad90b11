"""What the classifiers of the zoo share: the loss, and the figures of a test set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.data.examples import Examples


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
