"""Goodput: how much training a job gets done in a second, by its workers, with the batch that suits each number best.

goodput(w, B) = gain(B) / T(w, B), in steps with the initial batch per second (see `noise_scale`, `batch_speed`). A
larger batch has fewer exchanges, but each example is worth less: which is best depends on the workers and on the noise.

References: Qiao et al., "Pollux", OSDI 2021, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray
from optimus_models.speed.batch import BatchSpeed
from optimus_models.speed.elastic_batch import BatchTable, ElasticBatch, IntArray, cut
from optimus_models.speed.noise_scale import NoiseScale, gain

_ROOM = 8
"""Tables are made for multiples of so many workers."""
_SPREAD = 0.15
"""Standard deviation of a predicted goodput where little is measured, in logarithms; it falls with confidence."""


class StepTimes:
    """Step times of all choices, worked out once for a fitted speed: noise scales change more often than speeds."""

    def __init__(self, speed: BatchSpeed, limits: ElasticBatch) -> None:
        self.speed, self.limits = speed, limits
        self._known: dict[int, FloatArray] = {}
        self._single: dict[tuple[int, int], float] = {}

    def of(self, most_workers: int) -> tuple[BatchTable, FloatArray]:
        """The choices of 1 to so many workers, and (k,) seconds of a step with each."""
        table = self.limits.table(most_workers)
        if most_workers not in self._known:
            self._known[most_workers] = self.speed.step_seconds(table.workers, table.cut.local, table.cut.passes)
        return table, self._known[most_workers]

    def one(self, workers: int, batch: int) -> float:
        """Seconds of a step with any batch."""
        if (workers, batch) not in self._single:
            cuts = cut(self.limits, [workers], [batch])
            self._single[workers, batch] = float(self.speed.step_seconds([workers], cuts.local, cuts.passes)[0])
        return self._single[workers, batch]


@dataclass(frozen=True, eq=False)
class Goodput:
    """The goodput of one job."""

    times: StepTimes
    noise: NoiseScale
    confidence: float
    """In the step times, 0 (no measurement) to 1."""
    fixed: int | None = None
    """The one batch that it trains with, if it is not to be chosen."""
    _best: dict[int, tuple[FloatArray, IntArray]] = field(default_factory=dict, repr=False)

    @property
    def n_points(self) -> int:
        """Distinct numbers of workers that the job itself has measured."""
        return self.times.speed.n_points

    @property
    def error(self) -> float:
        """Relative error of a prediction, roughly."""
        return _SPREAD * (2.0 - self.confidence)

    @cached_property
    def coefficients(self) -> Mapping[str, float]:
        """Seconds of a full pass, of an exchange of 2 and of 8 workers, and the noise scale in examples."""
        speed = self.times.speed
        two, eight = speed.exchange_seconds([2, 8]).tolist()
        one = float(speed.pass_seconds([speed.per_pass])[0])
        return MappingProxyType(
            {"full_pass": one, "exchange_2": two, "exchange_8": eight, "noise_scale": self.noise.examples}
        )

    def predict(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """(n,) goodput with so many workers and the best batch for them; `servers` says nothing."""
        del servers
        w = _counts(workers)
        return self._of_best(w)[0][w - 1]

    def predict_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold it with about the probability `coverage`."""
        factor = float(np.exp(1.2816 * self.error * coverage / 0.8))
        mean = self.predict(workers, servers)
        return mean / factor, mean * factor

    def best_batch(self, workers: int) -> int:
        """The batch with the highest goodput for so many workers."""
        return int(self._of_best(np.array([workers]))[1][workers - 1])

    def at(self, workers: int, batch: int) -> float:
        """Goodput of a batch, best or not."""
        return float(self._gain(np.array([batch]))[0]) / self.times.one(workers, batch)

    def _gain(self, batches: IntArray) -> FloatArray:
        return gain(batches, self.times.limits.minimum, self.noise.examples)

    def _of_best(self, workers: IntArray) -> tuple[FloatArray, IntArray]:
        """Goodput and batch of 1, 2, ... workers, as many as are asked for at least."""
        most = -(-int(workers.max(initial=1)) // _ROOM) * _ROOM
        if most not in self._best:
            self._best[most] = self._choose(most)
        return self._best[most]

    def _choose(self, most: int) -> tuple[FloatArray, IntArray]:
        if self.fixed is not None:
            batches = np.full(most, self.fixed)
            counts = np.arange(1, most + 1)
            cuts = cut(self.times.limits, counts, batches)
            return self._gain(batches) / self.times.speed.step_seconds(counts, cuts.local, cuts.passes), batches
        table, seconds = self.times.of(most)
        goodputs = self._gain(table.batches) / seconds
        # The last of each number of workers, once they are sorted by goodput.
        order = np.lexsort((-table.batches, goodputs, table.workers))
        best = order[np.append(table.first[1:], len(order)) - 1]
        return goodputs[best], table.batches[best]


def _counts(workers: ArrayLike) -> IntArray:
    return np.maximum(np.asarray(workers, dtype=np.int64).reshape(-1), 1)
