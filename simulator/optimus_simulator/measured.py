"""Laws of jobs that really ran: what was measured where it was measured, a fitted law elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from optimus_simulator.truth import SpeedLaw

Measured = tuple[tuple[int, int, float], ...]
"""(workers, servers, steps per second)"""


@dataclass(frozen=True, slots=True)
class MeasuredLaw:
    """Steps per second: as measured at the sizes that the job had, elsewhere by a law that is bent to what was
    measured nearest, so that it has no jump there."""

    law: SpeedLaw
    measured: Measured
    _known: dict[tuple[int, int], float] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, workers: int, servers: int) -> float:
        size = (workers, servers)
        if size not in self._known:
            w, p, speed = min(self.measured, key=lambda one: _distance(one, workers, servers))
            self._known[size] = speed * self.law(workers, servers) / self.law(w, p)
        return self._known[size]


def _distance(one: tuple[int, int, float], workers: int, servers: int) -> float:
    """Between sizes, by their logarithms: from 1 to 2 is as far as from 8 to 16."""
    return math.hypot(math.log(one[0] / max(workers, 1)), math.log(max(one[1], 1) / max(servers, 1)))


@dataclass(frozen=True, slots=True)
class MeasuredLosses:
    """The loss by epoch, between measured points on a straight line."""

    epochs: tuple[float, ...]
    """Increasing."""
    losses: tuple[float, ...]

    def __call__(self, epoch: float) -> float:
        return float(np.interp(epoch, self.epochs, self.losses))
