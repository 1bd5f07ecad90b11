"""Examples held in memory, as a map-style dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

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
