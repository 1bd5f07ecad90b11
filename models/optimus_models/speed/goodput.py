"""Goodput: how much training a job gets done in a second, by its workers, with the batch that suits each number best.

goodput(w, B) = gain(B) / T(w, B), in steps with the initial batch per second; T is the step time of `BatchSpeed`. A
larger batch has fewer exchanges, but each example is worth less: which is best depends on the workers and on the noise.

The gradient of B examples is the true gradient G plus noise of covariance Σ/B. With the *noise scale* N = tr(Σ)/|G|²,
in examples, a step with B examples makes 1/(1 + N/B) of the progress that it would make without noise. So a step with B
examples is worth

    gain(B) = (1 + N/M) / (1 + N/B)

steps with M: B/M of them while both are far below N, no more than 1 + N/M ever. This is the efficiency of Pollux,
(φ + M)/(φ + B) for its φ = N, times the batch, B/M. N grows during training, as the gradient becomes small.

References: Qiao et al., "Pollux", OSDI 2021, sections 3.1 and 3.2; McCandlish et al., "An Empirical Model of
Large-Batch Training", 2018, section 2 and appendix A; Johnson et al., "AdaScale SGD", ICML 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from optimus_models.history import FloatArray
from optimus_models.speed.batch import BatchSpeed, worker_counts

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


_FADING = 0.6
"""A reading counts so much of the next one: N changes slowly, one reading errs by a fifth."""
_OTHERS_READINGS = 0.5
"""What other jobs of the same kind did counts as so many readings."""
_LEAST, _MOST = 1e-6, 1e12
"""Readings are taken to be within these: a gradient may vanish."""


def gain(batches: ArrayLike, initial: float, noise_scale: float) -> FloatArray:
    """(n,) steps with the batch `initial` that one step with each of `batches` (n,) is worth.

    `noise_scale` in examples, as the batches; 0 if nothing is gained by a larger one.
    """
    b = np.maximum(np.asarray(batches, dtype=np.float64).reshape(-1), 1e-9)
    return np.asarray((1.0 + noise_scale / initial) / (1.0 + noise_scale / b))


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The noise scale of one job now."""

    examples: float
    """0 where nothing is known: then no batch is better than the smallest."""
    n_points: int
    """Readings of the job itself."""

    @classmethod
    def fit(
        cls, steps: ArrayLike, readings: ArrayLike, others: Sequence[tuple[ArrayLike, ArrayLike]] = ()
    ) -> NoiseScale:
        """From `readings`, in examples, at `steps` (scale-invariant, rising); `others` are of jobs of the same kind.

        Never raises on data: what is not above 0 is ignored.
        """
        at, logs = _usable(steps, readings)
        theirs = [each for each in (_usable(*one) for one in others) if len(each[0])]
        weights = _FADING ** np.arange(len(logs))[::-1]
        weight = float(weights.sum())
        if not theirs:
            return cls(float(np.exp((weights * logs).sum() / weight)) if weight else 0.0, len(logs))
        # Theirs tell how it grows, its own how it differs from them.
        usual = np.mean([np.interp(at, *each) for each in theirs], axis=0)
        apart = float((weights * (logs - usual)).sum()) / (weight + _OTHERS_READINGS)
        now = float(at[-1]) if len(at) else 0.0
        return cls(float(np.exp(np.mean([np.interp(now, *each) for each in theirs]) + apart)), len(logs))


def _usable(steps: ArrayLike, readings: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Steps and logarithms of the readings that can be used."""
    at, values = (np.asarray(column, dtype=np.float64).reshape(-1) for column in (steps, readings))
    good = (values > 0) & np.isfinite(at)
    return at[good], np.log(np.clip(values[good], _LEAST, _MOST))


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
        w = worker_counts(workers)
        return self._of_best(w)[0][w - 1]

    def predict_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold it with about the probability `coverage`."""
        _, low, high = self.predict_with_interval(workers, servers, coverage)
        return low, high

    def predict_with_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The mean with these bounds: see `SpeedLaw`."""
        factor = float(np.exp(1.2816 * self.error * coverage / 0.8))
        mean = self.predict(workers, servers)
        return mean, mean / factor, mean * factor

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
