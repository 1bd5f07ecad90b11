"""Measured speeds by (workers, servers) in the place of arithmetic: a `SpeedModel`, at the level of a GPU type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optimus_models.cost import Allocation, Estimate, Prices, TimeAndCost, times_and_costs
from optimus_models.speed.servers import SpeedModel


class MeasuredSpeed(NamedTuple):
    """One measurement: steps per second of the whole job."""

    workers: int
    servers: int
    steps_per_second: float


class MeasuredSpeeds(NamedTuple):
    """What was measured, and the model fitted to it."""

    rows: tuple[MeasuredSpeed, ...]
    model: SpeedModel
    level: float = 1.0
    """What predictions are multiplied by: measured elsewhere, on hardware so many times slower."""

    @classmethod
    def fit(cls, rows: Sequence[MeasuredSpeed], batch_size: int) -> MeasuredSpeeds:
        """`rows`: one or more, of synchronous training."""
        model = SpeedModel.fit(*_columns(rows), global_batch_size=batch_size)
        return cls(tuple(rows), model)

    def at_level_of(self, alone_seconds: float) -> MeasuredSpeeds:
        """How the job scales, on hardware where one worker's step takes `alone_seconds`."""
        return self._replace(level=1.0 / alone_seconds / float(self.model.predict(1, 1)[0]))

    def steps_per_second(self, workers: int, servers: int) -> Estimate:
        """With the model's 80 % interval."""
        low, high = self.model.predict_interval(workers, servers)
        mean = self.model.predict(workers, servers)
        return Estimate(float(mean[0]), float(low[0]), float(high[0])).times(self.level)

    def held_out_errors(self) -> list[float]:
        """Of each measured size, predicted from the others: |predicted - measured| / measured. Empty for one size."""
        sizes = sorted({(row.workers, row.servers) for row in self.rows})
        if len(sizes) < 2:
            return []
        return [self._held_out_error(size) for size in sizes]

    def _held_out_error(self, size: tuple[int, int]) -> float:
        others = [row for row in self.rows if (row.workers, row.servers) != size]
        mine = float(np.mean([r.steps_per_second for r in self.rows if (r.workers, r.servers) == size]))
        model = SpeedModel.fit(*_columns(others), global_batch_size=self.model.form.batch)
        return abs(float(model.predict(*size)[0]) - mine) / mine


def _columns(rows: Sequence[MeasuredSpeed]) -> tuple[list[int], list[int], list[float]]:
    return [row.workers for row in rows], [row.servers for row in rows], [row.steps_per_second for row in rows]


def measured_time_to_target(
    speeds: MeasuredSpeeds, steps: Estimate, gpu: str, workers: Sequence[int], servers: int, prices: Prices
) -> tuple[TimeAndCost, ...]:
    """Time and cost of `steps` steps for each number of `workers`."""
    sizes = [Allocation(w, servers, gpu) for w in workers]
    return times_and_costs(sizes, steps, lambda size: speeds.steps_per_second(size.workers, size.servers), prices)
