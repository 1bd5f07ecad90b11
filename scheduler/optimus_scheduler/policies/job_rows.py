"""What policies ask of the jobs themselves, as rows of arrays that are kept from round to round.

Most jobs are the very same value as in the round before, and need not be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.policies.kinds import Kinds
from optimus_scheduler.types import Job

FIGURES = {
    "workers": "allocation.workers",
    "servers": "allocation.servers",
    "least_workers": "spec.worker.minimum",
    "least_servers": "spec.server.minimum",
    "most_workers": "spec.worker.maximum",
    "most_servers": "spec.server.maximum",
    "priority": "spec.priority",
    "submitted_at": "submitted_at",
    "attained": "attained_share_seconds",
}
"""The columns, and what of a job they hold."""
_figures_of = attrgetter(*FIGURES.values())
_kinds_of = attrgetter("spec.worker.resources", "spec.server.resources")

_GONE = 2
"""Jobs that are remembered for each that is there, before those that have gone are forgotten."""


class Rows(NamedTuple):
    """Of n jobs, in their order."""

    figures: NDArray[np.float64]
    """(n, columns)"""
    asked: NDArray[np.int64]
    """(n, 2) what a worker and a server of each asks for, as numbers ..."""
    kinds: Kinds
    """... of these."""


class JobRows:
    """Remembers the rows of the jobs that it was asked about lately."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Job, int]] = {}
        """By id, a job and its row."""
        self._figures, self._asked = _empty(0)
        self._kinds = Kinds()

    def of(self, jobs: Sequence[Job]) -> Rows:
        """The rows of these jobs, each of which has an id of its own."""
        if len(self._known) > _GONE * len(jobs):
            self._known, self._kinds = {}, Kinds()
        known = self._known
        rows: list[int] = []
        new: list[int] = []
        for number, job in enumerate(jobs):
            entry = known.get(job.id)
            if entry is None or entry[0] is not job:
                entry = known[job.id] = (job, len(known) if entry is None else entry[1])
                new.append(number)
            rows.append(entry[1])
        if new:
            self._write([rows[number] for number in new], [jobs[number] for number in new])
        at = np.array(rows, dtype=np.int64)
        return Rows(self._figures[at], self._asked[at], self._kinds)

    def _write(self, rows: Sequence[int], jobs: Sequence[Job]) -> None:
        if len(self._known) > len(self._figures):
            figures, asked = _empty(_GONE * len(self._known))
            figures[: len(self._figures)], asked[: len(self._asked)] = self._figures, self._asked
            self._figures, self._asked = figures, asked
        told = np.fromiter(chain.from_iterable(map(_figures_of, jobs)), np.float64, len(jobs) * len(FIGURES))
        numbers = self._kinds.numbers(chain.from_iterable(map(_kinds_of, jobs)))
        self._figures[rows] = told.reshape(-1, len(FIGURES))
        self._asked[rows] = np.array(numbers, dtype=np.int64).reshape(-1, 2)


def _empty(height: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return np.zeros((height, len(FIGURES))), np.zeros((height, 2), dtype=np.int64)
