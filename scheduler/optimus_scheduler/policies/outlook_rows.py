"""What policies ask of the jobs and their forecasts, as rows of arrays that are kept from round to round.

Most jobs, and what is predicted of them, are the very same values as in the round before, and need not be asked again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.forecasting.outlook import Outlook
from optimus_scheduler.forecasting.speeds import Speeds
from optimus_scheduler.policies.kinds import Kinds
from optimus_scheduler.types import Forecast, Job, Resources

_ATTRIBUTES = {
    "workers": "job.allocation.workers",
    "servers": "job.allocation.servers",
    "least_workers": "job.spec.worker.minimum",
    "least_servers": "job.spec.server.minimum",
    "most_workers": "job.spec.worker.maximum",
    "most_servers": "job.spec.server.maximum",
    "priority": "job.spec.priority",
    "submitted_at": "job.submitted_at",
    "attained": "job.attained_share_seconds",
    "confidence": "forecast.confidence",
    "speeds_known": "speeds.is_known",
    "sure_of_speed": "speeds.confidence",
}
"""The columns, and what of an outlook they hold ..."""
FIGURES = (*_ATTRIBUTES, "remaining")
"""... and the steps left; NaN where nothing says how many."""
_figures_of = attrgetter(*_ATTRIBUTES.values())
_kinds_of = attrgetter("job.spec.worker.resources", "job.spec.server.resources")

_GONE = 2
"""Jobs that are remembered for each that is there, before those that have gone are forgotten."""


class _Known(NamedTuple):
    """A job, what was predicted of it, and its row."""

    job: Job
    forecast: Forecast
    speeds: Speeds
    row: int


class Rows(NamedTuple):
    """Of n jobs, in their order."""

    row: list[int]
    """By which they are remembered."""
    figures: NDArray[np.float64]
    """(n, columns)"""
    asked: NDArray[np.int64]
    """(n, 2) what a worker and a server of each asks for, as numbers ..."""
    kinds: Kinds
    """... of these."""


class OutlookRows:
    """Remembers the rows of the jobs that it was asked about lately."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        """By id."""
        self._figures, self._asked = _empty(0)
        self._kinds = Kinds()
        self._derived: list[Any] = []
        """By row, what was derived from the specification and the speeds ..."""
        self._capacity: Resources | None = None
        """... and this."""

    def of(self, outlooks: Sequence[Outlook]) -> Rows:
        """The rows of these jobs, each of which has an id of its own."""
        if len(self._known) > _GONE * len(outlooks):
            self._known, self._kinds, self._derived = {}, Kinds(), []
        known = self._known
        rows: list[int] = []
        new: list[int] = []
        for number, one in enumerate(outlooks):
            job = one.job
            entry = known.get(job.id)
            if entry is None or entry[0] is not job or entry[1] is not one.forecast or entry[2] is not one.speeds:
                entry = known[job.id] = self._entry(one, entry)
                new.append(number)
            rows.append(entry[3])
        if new:
            self._write([rows[number] for number in new], [outlooks[number] for number in new])
        at = np.array(rows, dtype=np.int64)
        return Rows(rows, self._figures[at], self._asked[at], self._kinds)

    def _entry(self, one: Outlook, before: _Known | None) -> _Known:
        if before is None:
            self._derived.append(None)
            return _Known(one.job, one.forecast, one.speeds, len(self._known))
        if before.speeds is not one.speeds or before.job.spec is not one.job.spec:
            self._derived[before.row] = None
        return _Known(one.job, one.forecast, one.speeds, before.row)

    def _write(self, rows: Sequence[int], outlooks: Sequence[Outlook]) -> None:
        if len(self._known) > len(self._figures):
            figures, asked = _empty(_GONE * len(self._known))
            figures[: len(self._figures)], asked[: len(self._asked)] = self._figures, self._asked
            self._figures, self._asked = figures, asked
        n, width = len(outlooks), len(_ATTRIBUTES)
        told = np.fromiter(chain.from_iterable(map(_figures_of, outlooks)), np.float64, n * width)
        self._figures[rows, :width] = told.reshape(-1, width)
        left = [one.forecast.remaining_steps for one in outlooks]
        self._figures[rows, width] = [math.nan if each is None else each.mean for each in left]
        numbers = self._kinds.numbers(chain.from_iterable(map(_kinds_of, outlooks)))
        self._asked[rows] = np.array(numbers, dtype=np.int64).reshape(-1, 2)

    def derived(self, rows: Sequence[int], capacity: Resources) -> list[Any]:
        """What was derived for these rows from specification, speeds and capacity, as long as these are the same."""
        if capacity is not self._capacity and capacity != self._capacity:
            self._capacity, self._derived = capacity, [None] * len(self._derived)
        derived = self._derived
        return [derived[row] for row in rows]

    def derive(self, row: int, value: object) -> None:
        """To be remembered."""
        self._derived[row] = value


def _empty(height: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return np.zeros((height, len(FIGURES))), np.zeros((height, 2), dtype=np.int64)
