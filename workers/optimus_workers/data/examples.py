"""Examples held in memory, as a map-style dataset, and finding the files that they are read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from optimus_workers.errors import TaskError

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


# --- files -----------------------------------------------------------------------------------------------------------


def find(directory: str | Path, folders: Sequence[str], names: Sequence[str], what: str) -> list[Path]:
    """The files `names` in `directory`, or all of them in one of its `folders`; a name may also end in .gz there.

    Raises `TaskError` that names the files that are missing.
    """
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise TaskError(f"{what}: there is no directory {root}")
    places = [root, *(root / folder for folder in folders)]
    for place in places:
        found = [_existing(place / name) for name in names]
        if all(found):
            return [path for path in found if path is not None]
    missing = [name for name in names if not any(_existing(place / name) for place in places)] or list(names)
    looked = ", ".join(str(place) for place in places)
    raise TaskError(f"{what}: {', '.join(missing)} not found in {looked}")


def _existing(path: Path) -> Path | None:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None
