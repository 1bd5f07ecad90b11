"""The ladders of many jobs side by side in arrays, kept from round to round: most are those of the round before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from optimus_scheduler.policies.contenders import FloatArray, IntArray
from optimus_scheduler.policies.ladders import Ladder

_SPARE = 2
"""Rungs that are kept for each that is used, before those of ladders that are gone are dropped."""


class _Place(NamedTuple):
    first: int
    length: int
    ladder: Ladder


class Rungs(NamedTuple):
    """Where the rungs of some jobs stand in a stack; arrays (k,), those of a job one after the other."""

    job: IntArray
    row: IntArray
    """Row of the stack."""


class Stack:
    """Columns with all rungs of all ladders that it was asked for lately."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        """By the ladder's id, of ladders that are kept alive here."""
        self._start(0)

    def _start(self, height: int) -> None:
        """Empty columns with room for so many rungs."""
        self._places, self._height = {}, 0
        self.workers: IntArray = np.zeros(height, dtype=np.int64)
        self.servers: IntArray = np.zeros(height, dtype=np.int64)
        self.costs: FloatArray = np.zeros(height)
        self.speeds: FloatArray = np.zeros(height)

    def rungs(self, ladders: Sequence[Ladder], most: IntArray) -> Rungs:
        """The lowest rungs of these ladders, `most` (n,) of each, in their order; valid until the next call."""
        self._hold(ladders)
        places = [self._places[id(ladder)] for ladder in ladders]
        first = np.array([place[0] for place in places], dtype=np.int64)
        length = np.minimum(np.array([place[1] for place in places], dtype=np.int64), most)
        job = np.repeat(np.arange(len(ladders)), length)
        begin = np.cumsum(length) - length
        return Rungs(job, np.arange(len(job)) + (first - begin)[job])

    def _hold(self, ladders: Sequence[Ladder]) -> None:
        different = {id(ladder): ladder for ladder in ladders}
        missing = [ladder for key, ladder in different.items() if key not in self._places]
        if self._height + _n_rungs(missing) > len(self.costs):
            missing = list(different.values())
            self._start(_SPARE * _n_rungs(missing))
        if missing:
            self._append(missing)

    def _append(self, ladders: Sequence[Ladder]) -> None:
        begin = self._height
        for ladder in ladders:
            self._places[id(ladder)] = _Place(self._height, len(ladder.costs), ladder)
            self._height += len(ladder.costs)
        rows = slice(begin, self._height)
        np.concatenate([ladder.workers for ladder in ladders], out=self.workers[rows])
        np.concatenate([ladder.servers for ladder in ladders], out=self.servers[rows])
        np.concatenate([ladder.costs for ladder in ladders], out=self.costs[rows])
        np.concatenate([ladder.speeds for ladder in ladders], out=self.speeds[rows])


def _n_rungs(ladders: Iterable[Ladder]) -> int:
    return sum([len(ladder.costs) for ladder in ladders])
