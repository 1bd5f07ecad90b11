"""Amounts of resources that workers and servers ask for, numbered: many jobs ask for the same, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.types import Resources

FloatArray = NDArray[np.float64]

_LEAST_SHARE = 1e-9


class Kinds:
    """Numbers amounts by identity, and keeps what was worked out for each."""

    def __init__(self) -> None:
        self.all: list[Resources] = []
        """By number."""
        self._numbers: dict[int, int] = {}
        self._types: dict[str, None] = {}
        self._shares = _Rows()
        self._amounts = _Rows()

    def numbers(self, resources: Iterable[Resources]) -> list[int]:
        """The number of each."""
        numbers = self._numbers
        found = []
        for one in resources:
            number = numbers.get(id(one))
            if number is None:
                number = numbers[id(one)] = len(self.all)
                self.all.append(one)
                self._types.update(dict.fromkeys(one.gpus))
            found.append(number)
        return found

    @property
    def gpu_types(self) -> list[str]:
        """All that any of them asks for."""
        return list(self._types)

    def dominant_shares(self, capacity: Resources) -> FloatArray:
        """(k,) of the capacity, above 0, at most 1."""

        def share(one: Resources) -> float:
            return max(min(one.dominant_share(capacity), 1.0), _LEAST_SHARE)

        return self._shares.of(self.all, capacity, share)

    def amounts(self, gpu_types: Sequence[str]) -> FloatArray:
        """(k, 2 + types) cores, bytes, and GPUs of each of these types."""
        return self._amounts.of(self.all, tuple(gpu_types), lambda one: amounts(one, gpu_types))


def amounts(resources: Resources, gpu_types: Sequence[str]) -> list[float]:
    """Cores, bytes, and GPUs of each of these types."""
    return [resources.cpu, float(resources.memory_bytes), *(float(resources.gpus.get(kind, 0)) for kind in gpu_types)]


class _Rows:
    """Figures of each kind, as long as they are asked for in relation to the same."""

    def __init__(self) -> None:
        self._relation: object = None
        self._rows: list[float | list[float]] = []
        self._array: FloatArray = np.zeros(0)

    def of(
        self, kinds: Sequence[Resources], relation: object, figures: Callable[[Resources], float | list[float]]
    ) -> FloatArray:
        if relation is not self._relation and relation != self._relation:
            self._relation, self._rows = relation, []
        if len(self._rows) < len(kinds):
            self._rows += [figures(kind) for kind in kinds[len(self._rows) :]]
            self._array = np.array(self._rows, dtype=np.float64)
        return self._array
