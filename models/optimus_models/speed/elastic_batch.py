"""Which global batches a job may train with, and how one of them is cut into what its workers compute at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]

_SPACING = 2.0**0.5
"""Of the batches that are considered: goodput is flat round its best batch."""


@dataclass(frozen=True, slots=True)
class ElasticBatch:
    """The bounds that a job's owner gives. All numbers are examples.

    Raises:
        ValueError: no batch is within the bounds, or one worker cannot train with the smallest.
    """

    minimum: int
    """The initial batch. Work is counted in steps with it: what another batch does in a step is its gain."""
    maximum: int
    per_pass: int
    """What fits into one worker at once. More is computed in several passes whose gradients are added."""
    most_passes: int = 16
    """In one step."""

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ValueError(f"a batch from {self.minimum} to {self.maximum} examples cannot be")
        if self.per_pass < 1 or self.most_passes < 1 or self.minimum > self.per_pass * self.most_passes:
            raise ValueError(f"one worker cannot train with {self.minimum} examples in a step")

    def most(self, workers: int) -> int:
        """The largest batch of so many workers."""
        return min(self.maximum, workers * self.per_pass * self.most_passes)

    def choices(self, workers: int) -> tuple[int, ...]:
        """The batches that are considered for so many workers, rising; all within the bounds.

        They are evenly spread, and those that fill whole passes are among them.
        """
        most = self.most(workers)
        even = takewhile(lambda batch: batch < most, _even(self.minimum, self.maximum))
        full = range(workers * self.per_pass, most + 1, workers * self.per_pass)
        least = min(max(self.minimum, workers), most)  # an example for everybody
        return tuple(sorted(batch for batch in {least, most, *even, *full} if least <= batch <= most))

    def table(self, workers: int) -> BatchTable:
        """All choices of 1 to so many workers."""
        return _table(self, workers)


def _even(minimum: int, maximum: int) -> list[int]:
    count = int(np.log(maximum / minimum) / np.log(_SPACING)) + 1
    return [round(minimum * _SPACING**i) for i in range(count + 1)]


class Cut(NamedTuple):
    """How workers share batches; arrays (n,)."""

    passes: IntArray
    """Gradients that each worker computes and adds in one step."""
    local: IntArray
    """Examples of each."""


def cut(limits: ElasticBatch, workers: ArrayLike, batches: ArrayLike) -> Cut:
    """How each batch is cut among that many workers.

    A worker alone needs two gradients to tell noise from signal: of all but the initial batch it computes two.
    """
    w = np.maximum(np.asarray(workers, dtype=np.int64).reshape(-1), 1)
    examples = -(-np.asarray(batches, dtype=np.int64).reshape(-1) // w)
    passes = np.maximum(-(-examples // limits.per_pass), 1)
    alone = (w == 1) & (examples > limits.minimum)
    passes = np.where(alone, np.maximum(passes, 2), passes)
    return Cut(passes, -(-examples // passes))


class BatchTable(NamedTuple):
    """The choices of 1, 2, ... workers, one after the other; arrays (k,)."""

    workers: IntArray
    batches: IntArray
    cut: Cut
    first: IntArray
    """(w,) row of the first choice of each number of workers."""


@lru_cache(maxsize=256)  # made of the bounds alone, which many jobs share
def _table(limits: ElasticBatch, workers: int) -> BatchTable:
    choices = [limits.choices(w) for w in range(1, workers + 1)]
    counts = [len(batches) for batches in choices]
    w = np.repeat(np.arange(1, workers + 1), counts)
    batches = np.concatenate([np.array(each, dtype=np.int64) for each in choices])
    return BatchTable(w, batches, cut(limits, w, batches), np.concatenate([[0], np.cumsum(counts)[:-1]]))
