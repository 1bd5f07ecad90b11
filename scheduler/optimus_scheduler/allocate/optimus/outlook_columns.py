"""What policies ask of the jobs and their forecasts, as rows of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.allocate.optimus.resource_shapes import ResourceShapes
from optimus_scheduler.forecast.outlook import Outlook

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
    "learning": "learning",
    "measured": "measured",
    "claimed": "claimed",
    "stop_seconds": "stop_seconds",
    "waited_seconds": "waited_seconds",
    "held_seconds": "held_seconds",
    "typical_seconds": "typical_seconds",
}
"""The columns, and what of an outlook they hold ..."""
FIGURES = (*_ATTRIBUTES, "remaining")
"""... and the steps left; NaN where nothing says how many."""
_figures_of = attrgetter(*_ATTRIBUTES.values())
_shapes_of = attrgetter("job.spec.worker.resources", "job.spec.server.resources")


class Rows(NamedTuple):
    """Of n jobs, in their order."""

    figures: NDArray[np.float64]
    """(columns, n)"""
    asked: NDArray[np.int64]
    """(n, 2) what a worker and a server of each asks for, as numbers ..."""
    shapes: ResourceShapes
    """... of these."""


def rows_of(outlooks: Sequence[Outlook]) -> Rows:
    """The rows of these jobs."""
    n, width = len(outlooks), len(_ATTRIBUTES)
    figures = np.empty((len(FIGURES), n))
    reported = np.fromiter(chain.from_iterable(map(_figures_of, outlooks)), np.float64, n * width)
    figures[:width] = reported.reshape(-1, width).T
    left = [one.forecast.remaining_steps for one in outlooks]
    figures[width] = [math.nan if each is None else each.mean for each in left]
    shapes = ResourceShapes()
    numbers = shapes.numbers(chain.from_iterable(map(_shapes_of, outlooks)))
    return Rows(figures, np.array(numbers, dtype=np.int64).reshape(-1, 2), shapes)
