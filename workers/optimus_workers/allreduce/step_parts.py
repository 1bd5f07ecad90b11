"""How large the parts of one step's gradient are: what its noise is told from (`telemetry.gradients`).

The parts are the shares of the members; of a worker alone, its slots. All of them count: of few examples a single one
may have nearly all of the gradient, and which part it falls into would decide what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from optimus_workers.worker.batches import Slot


class StepParts:
    """Of one worker, in one step."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._n_done = 0
        self._before: Tensor | None = None
        self.sums = torch.zeros(3, dtype=torch.float64)
        """Over the parts: |mean gradient|², 1 / examples, 1."""

    def slot_done(self, gradients: Tensor) -> None:
        """The next slot is a part: `gradients` is the weighted sum up to it."""
        own = gradients if self._before is None else gradients - self._before
        slot = self._slots[self._n_done]
        self._add(float(torch.dot(own, own)), slot.weight, len(slot.indices))
        self._n_done += 1
        if self._n_done < len(self._slots):
            self._before = gradients.clone()

    def share_done(self, square: float) -> None:
        """All slots are one part, whose weighted gradient has this square; no slot: no part."""
        if self._slots:
            n_examples = sum(len(slot.indices) for slot in self._slots)
            self._add(square, sum(slot.weight for slot in self._slots), n_examples)

    def _add(self, square: float, weight: float, n_examples: int) -> None:
        self.sums += torch.tensor([square / weight**2, 1.0 / n_examples, 1.0], dtype=torch.float64)
