"""Amounts of resources that workers and servers ask for, numbered: many jobs of a round ask for the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model import Resources

FloatArray = NDArray[np.float64]

_LEAST_SHARE = 1e-9


class ResourceShapes:
    """The different amounts that the jobs of one round ask for."""

    def __init__(self) -> None:
        self.all: list[Resources] = []
        """By number."""
        self._numbers: dict[object, int] = {}

    def numbers(self, resources: Iterable[Resources]) -> list[int]:
        """The number of each: the same for equal amounts."""
        numbers = self._numbers
        found = []
        for one in resources:
            key = (one.cpu, one.memory_bytes, tuple(one.gpus.items()) if one.gpus else ())
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(self.all)
                self.all.append(one)
            found.append(number)
        return found

    @property
    def gpu_types(self) -> list[str]:
        """All that any of them asks for."""
        return list(dict.fromkeys(kind for one in self.all for kind in one.gpus))

    def dominant_shares(self, capacity: Resources) -> FloatArray:
        """(k,) of the capacity, above 0, at most 1."""
        shares = [one.dominant_share(capacity) for one in self.all]
        return np.clip(np.array(shares, dtype=np.float64), _LEAST_SHARE, 1.0)

    def amounts(self, gpu_types: Sequence[str]) -> FloatArray:
        """(k, 2 + types) cores, bytes, and GPUs of each of these types."""
        return np.array([amounts(one, gpu_types) for one in self.all], dtype=np.float64)


def amounts(resources: Resources, gpu_types: Sequence[str]) -> list[float]:
    """Cores, bytes, and GPUs of each of these types."""
    return [resources.cpu, float(resources.memory_bytes), *(float(resources.gpus.get(kind, 0)) for kind in gpu_types)]
