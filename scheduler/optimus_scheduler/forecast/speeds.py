"""Speeds of jobs at sizes: one job at a time, and the speeds of many jobs at once as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimus_models.cost import Estimate
from optimus_models.speed import SpeedLaw
from optimus_models.speed.form import along_servers, along_workers
from optimus_models.speed.goodput import Goodput
from optimus_models.speed.servers import SpeedModel
from optimus_scheduler.model import REACH, Allocation, SpeedSource

_BLOCK = 8
"""Speeds are predicted for 8 × 8 sizes at once: one vectorised call costs about as much as a single prediction."""

_MOST_LADDERS = 8


class Speeds:
    """Steps per second by (workers, servers), predicted block by block when first asked for.

    Of a job with an elastic batch: scale-invariant steps, with the batch that suits each size.
    """

    def __init__(
        self, model: SpeedLaw, source: SpeedSource | None = SpeedSource.MEASURED, level_doubt: float = 0.0
    ) -> None:
        """`source`: None when nothing is known. `level_doubt`: sigma of the logarithm of all speeds, beside the doubt
        of the model, of a job whose arguments nobody has run with."""
        self.model = model
        self._level_doubt = REACH * level_doubt
        self.source = source
        self.is_known = source is not None
        self.is_measured = source not in (None, SpeedSource.ANALYSIS)
        """By the job or by ended ones. Arithmetic on layers compares sizes; of a small network, whose steps are mostly
        what it leaves out, it is far too fast (6,490 steps/s were calculated where 88 were made): no time is predicted
        by it."""
        self.confidence = model.confidence
        """How sure they are, from 0 (nothing is known) to 1."""
        self.frontiers: dict[Hashable, Any] = {}
        """What a policy derived from these speeds; lives as long as they do."""
        self._known: dict[tuple[int, int], float] = {}
        self._doubts: dict[tuple[int, int], tuple[float, float]] = {}
        self._estimates: dict[Allocation, Estimate] = {}
        self._ratios: dict[tuple[Allocation, Allocation], Estimate] = {}

    @cached_property
    def description(self) -> Mapping[str, float]:
        """The model in numbers, for people; none before the job has measured any speed."""
        model = self.model
        if model.n_points == 0:
            return {}
        return {**model.coefficients, "error": model.error, "confidence": model.confidence, "n_points": model.n_points}

    def at(self, allocation: Allocation) -> float:
        """Predicted steps per second, above 0; 0 for a size without workers."""
        if allocation.workers < 1:
            return 0.0
        size = (allocation.workers, max(allocation.servers, 1))
        if size not in self._known:
            self._predict_block(*size)
        return self._known[size]

    def estimate(self, allocation: Allocation) -> Estimate:
        """Steps per second with the 80 % interval of a measured speed; the allocation has workers."""
        known = self._estimates.get(allocation)
        if known is None:
            known = self._estimates[allocation] = self.estimates([allocation])[0]
        return known

    def estimates(self, allocations: Sequence[Allocation]) -> list[Estimate]:
        """The same of several, all of one GPU type."""
        return [
            Estimate(speed, *(speed * self._with_level(bound) for bound in bounds))
            for speed, bounds in self._with_doubts(allocations)
        ]

    def _with_level(self, bound: float) -> float:
        """A bound over its mean, with the doubt about the level in it."""
        if not self._level_doubt:
            return bound
        log = math.log(bound)
        return math.exp(math.copysign(math.hypot(log, self._level_doubt), log))

    def compared(self, size: Allocation, other: Allocation) -> Estimate:
        """How many times as fast `size` is as `other`, both with workers, with its 80 % interval. What is doubtful of
        all speeds alike is no doubt of this."""
        if size == other:
            return Estimate.exactly(1.0)
        known = self._ratios.get((size, other))
        if known is None:
            this, that = (
                Estimate(speed, *(speed * bound for bound in bounds))
                for speed, bounds in self._with_doubts([size, other])
            )
            known = self._ratios[size, other] = this.over(that)
        return known

    def _with_doubts(self, allocations: Sequence[Allocation]) -> list[tuple[float, tuple[float, float]]]:
        """Speeds, and the model's bounds of each over its mean."""
        sizes = [(max(size.workers, 1), max(size.servers, 1)) for size in allocations]
        new = [size for size in dict.fromkeys(sizes) if size not in self._doubts]
        if new:
            workers, servers = np.array(new).T
            means, *bounds = self.model.predict_with_interval(workers, servers)
            low, high = (each / means for each in bounds)
            self._doubts.update(zip(new, zip(low.tolist(), high.tolist(), strict=True), strict=True))
        # The speeds are the model's own, or those for another GPU type.
        return [(self.at(each), self._doubts[size]) for each, size in zip(allocations, sizes, strict=True)]

    def many(self, workers: NDArray[np.int64], servers: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) speeds of sizes with at least one worker."""
        return self.model.predict(workers, np.maximum(servers, 1))

    def batch_at(self, workers: int) -> int | None:
        """The global batch that suits so many workers, at least 1; None for a job without an elastic batch."""
        return self.model.best_batch(workers) if isinstance(self.model, Goodput) else None

    def with_batch(self, workers: int, batch: int) -> float:
        """Steps per second with that batch, which may not be the best."""
        return self.model.at(workers, batch) if isinstance(self.model, Goodput) else 0.0

    def remember(self, key: Hashable, frontier: object) -> None:
        """Keep a frontier; of a few kinds only, as the cluster's capacity, which is part of the key, may change."""
        if len(self.frontiers) >= _MOST_LADDERS:
            self.frontiers.clear()
        self.frontiers[key] = frontier

    def _predict_block(self, workers: int, servers: int) -> None:
        first_w, first_p = _block_start(workers), _block_start(servers)
        speeds = self.model.predict(_BLOCK_W + first_w, _BLOCK_P + first_p)  # (64,)
        self._known.update(zip(_sizes(first_w, first_p), speeds.tolist(), strict=True))


_BLOCK_W, _BLOCK_P = (part.reshape(-1) for part in np.indices((_BLOCK, _BLOCK)))


@lru_cache
def _sizes(first_w: int, first_p: int) -> tuple[tuple[int, int], ...]:
    """The sizes of a block."""
    return tuple((first_w + w, first_p + p) for w, p in zip(_BLOCK_W.tolist(), _BLOCK_P.tolist(), strict=True))


def _block_start(count: int) -> int:
    return (count - 1) // _BLOCK * _BLOCK + 1


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FURTHER = ((1, 0), (0, 1), (1, 1))
"""One worker, one server, or one of both: some jobs gain nothing from either alone (Optimus reference, 3.5)."""
_FURTHER_W, _FURTHER_P = np.array(FURTHER).T
_UP_TO_ONE = np.array([[0], [1]])


class SpeedTable:
    """Predicts what `Speeds.at` predicts, up to rounding, for n jobs at once; a round has thousands of jobs.

    The logarithm of a speed model's correction to its formula is a sum of products, one factor of w and one of p
    (`optimus_models.speed.form`). Few different w and p have been measured: the factors of every w and p beside
    each of them are computed beforehand, and a speed then takes a few multiplications.
    """

    def __init__(self, speeds: Sequence[Speeds], most: IntArray) -> None:
        """`most` (n, 2): the largest workers and servers of each job that will be asked for."""
        self._speeds, self._most = speeds, np.maximum(most, 1).T
        models = [each.model if isinstance(each.model, SpeedModel) else None for each in speeds]
        self._formless = [number for number, model in enumerate(models) if model is None]
        self._coefficients = np.array([_coefficients(model) for model in models]).reshape(-1, 7).T.copy()  # (7, n)
        self._is_async = np.array([model is not None and model.mode == "async" for model in models], dtype=bool)
        workers, servers, self._weights = _measured(models)
        largest = self._most.max(axis=1, initial=1).tolist()
        self._by_workers = _Factors.over(along_workers, workers, largest[0])
        self._by_servers = _Factors.over(along_servers, servers, largest[1])

    def of(self, jobs: IntArray) -> SpeedTable:
        """Of these jobs only."""
        table = copy(self)
        table._speeds = [self._speeds[job] for job in jobs.tolist()]
        table._most, table._coefficients = self._most[:, jobs], self._coefficients[:, jobs]
        table._is_async = self._is_async[jobs]
        table._formless = np.flatnonzero(np.isin(jobs, self._formless)).tolist()
        table._weights = self._weights[jobs]
        table._by_workers, table._by_servers = self._by_workers.of(jobs), self._by_servers.of(jobs)
        return table

    def at(self, workers: IntArray, servers: IntArray) -> FloatArray:
        """(n,) steps per second of each job with so many workers, at least 1, and servers."""
        servers = np.maximum(servers, 1)
        by_workers, by_servers = self._by_workers.at(workers), self._by_servers.at(servers)
        residual: FloatArray = np.einsum("nmf,nmf,nm->n", by_workers, by_servers, self._weights)
        return self._speeds_from(residual[None], workers[None], servers[None]).reshape(-1)

    def one_further(self, workers: IntArray, servers: IntArray) -> FloatArray:
        """(3, n) with one more worker, one more server, and one more of both; never more than the most of each."""
        servers = np.maximum(servers, 1)
        w = np.minimum(workers + _UP_TO_ONE, self._most[0])  # (2, n): as many, and one more
        p = np.minimum(servers + _UP_TO_ONE, self._most[1])
        by_workers = self._by_workers.at(w, again=True)
        by_servers = self._by_servers.at(p, again=True)
        by_servers *= self._weights[:, :, None]
        residual = np.empty((len(FURTHER), len(workers)))
        for step, (more_w, more_p) in enumerate(FURTHER):
            np.einsum("nmf,nmf->n", by_workers[more_w], by_servers[more_p], out=residual[step])
        return self._speeds_from(residual, w.take(_FURTHER_W, axis=0), p.take(_FURTHER_P, axis=0))

    def _speeds_from(self, residual: FloatArray, workers: IntArray, servers: IntArray) -> FloatArray:
        """(s, n), like all of these."""
        w = workers.astype(np.float64)
        seconds = self._form_seconds(w, servers.astype(np.float64)) * np.exp(residual)
        speeds: FloatArray = np.asarray(np.where(self._is_async, w, 1.0) / seconds)
        for other in self._formless:
            speeds[:, other] = self._speeds[other].many(workers[:, other], servers[:, other])
        return speeds

    def _form_seconds(self, w: FloatArray, p: FloatArray) -> FloatArray:
        """See `optimus_models.speed.form`; a form that lacks a term has 0 there."""
        computing, fixed, shared, flat, workers, servers, updating = self._coefficients
        ratio = w / p
        seconds = computing / w + fixed + shared * ratio + flat * np.maximum(ratio, 1.0)
        seconds += workers * w + servers * p + updating / p
        return np.asarray(np.maximum(seconds, 1e-12))


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """The factors that the number of workers, or of servers, has in both terms of the residual."""

    table: FloatArray
    """(counts · different, 2) of every count beside every different measured one."""
    place: IntArray
    """(n, m) of the measured counts of each job among the different ones."""
    width: int
    """How many are different."""
    scratch: dict[tuple[int, ...], tuple[IntArray, FloatArray]] = field(default_factory=dict)
    """Rows of the table and what is there, by shape: memory that is used again costs much less than new memory."""

    @classmethod
    def over(
        cls, factors: Callable[[FloatArray], tuple[FloatArray, FloatArray]], measured: FloatArray, largest: int
    ) -> _Factors:
        """`measured` (n, m) counts, at least 1; `largest`: the largest count that will be asked for."""
        different, place = np.unique(measured, return_inverse=True)
        both = factors(np.log(np.arange(1.0, largest + 1.0))[:, None] - np.log(different))
        return cls(np.stack([each.reshape(-1) for each in both], axis=1), place.reshape(measured.shape), len(different))

    def of(self, jobs: IntArray) -> _Factors:
        return _Factors(self.table, self.place[jobs], self.width)

    def at(self, counts: IntArray, *, again: bool = False) -> FloatArray:
        """(..., n, m, 2) beside each measured count of each job, for `counts` (..., n).

        `again`: in the memory of the last time that so many were asked for.
        """
        shape = (*counts.shape, self.place.shape[1])
        rows, found = self.scratch.get(shape, (None, None)) if again else (None, None)
        if rows is None or found is None:
            rows, found = np.empty(shape, dtype=np.int64), np.empty((*shape, 2))
            if again:
                self.scratch[shape] = rows, found
        np.add(self.place, ((counts - 1) * self.width)[..., None], out=rows)
        np.take(self.table, rows, axis=0, out=found, mode="clip")  # with another mode there would be a copy
        return found


def _coefficients(model: SpeedModel | None) -> list[float]:
    """Of 1/w, 1, w/p, max(w/p, 1), w, p, 1/p."""
    if model is None:
        return [0.0] * 7
    form, theta = model.form, model.form.coefficients.tolist()
    computing = theta.pop(0) * form.batch if form.mode == "sync" else 0.0
    fixed, sending, workers, servers = theta[:4]
    shared, flat = (0.0, sending) if form.terms == "flat" else (sending, 0.0)
    return [computing, fixed, shared, flat, workers, servers, theta[4] if form.terms != "paper" else 0.0]


def _measured(models: Sequence[SpeedModel | None]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(n, m) w and p of what each job has measured, and its weight in the residual; padded with 1, 1 and weight 0."""
    residuals = [model.residual if model is not None else None for model in models]
    most = max((len(each.weights) for each in residuals if each is not None), default=0)
    workers, servers = (np.ones((len(models), most)) for _ in range(2))
    weights = np.zeros((len(models), most))
    for row, each in enumerate(residuals):
        if each is not None:
            n = len(each.weights)
            workers[row, :n], servers[row, :n], weights[row, :n] = each.workers, each.servers, each.weights
    return workers, servers, weights
