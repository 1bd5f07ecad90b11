"""Speed of an all-reduce job with a fixed batch by its workers, from what a step consists of: computing, then exchange.

    f(w) = 1 / (g(M/w) + x(w)),   x(1) = 0

with M examples in a global batch. How long computing and the exchange take is measured at every size, and each is told
of other sizes by a law of its own (see `BatchSpeed`): that is worth more than the speed of the whole, which falls
short of w times that of one worker for two reasons that grow differently. Jobs of the same kind with another global
batch say as much: they, too, computed so many examples at once, and exchanged as many gradients.

References: Qiao et al., "Pollux", OSDI 2021, section 3.2, for the split of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from optimus_models.history import FloatArray
from optimus_models.speed import half_width
from optimus_models.speed.batch import BatchSamples, BatchSpeed, UsableSamples, relative_error, worker_counts
from optimus_models.speed.boundary import Boundary

_USUAL_WORKERS = 4.0
"""Priors of a pass and of an exchange are stated for the batch of one worker among so many."""
_ROOM = 64
"""Speeds are worked out for multiples of so many workers."""
_MOST_SIGMA = 3.0
"""Of a logarithm: beyond a factor of twenty nothing more is said."""


class RingSamples(NamedTuple):
    """Measured steps of one job; arrays of one length."""

    workers: ArrayLike
    seconds: ArrayLike
    """Of a step."""
    exchange_seconds: ArrayLike
    """That part of it in which gradients travelled and nothing was computed."""
    batch: float
    """The global batch, in examples."""
    weights: ArrayLike = 1.0
    """From 0 to 1: they fade measurements."""

    def usable(self) -> UsableSamples:
        """By what each worker computed at once: all of its part."""
        w = np.maximum(np.asarray(self.workers, dtype=np.float64).reshape(-1), 1.0)
        samples = BatchSamples(w, self.batch / w, np.ones(len(w)), self.seconds, self.exchange_seconds, self.weights)
        return UsableSamples.of(samples)


class _Sizes(NamedTuple):
    """What a step takes with 1, 2, ... workers; arrays (n,)."""

    computing: FloatArray
    exchange: FloatArray
    speeds: FloatArray

    @classmethod
    def of(cls, steps: BatchSpeed, batch: float, most: int) -> _Sizes:
        """Up to `most` workers or a few more."""
        counts = np.arange(1, -(-most // _ROOM) * _ROOM + 1)
        computing, exchange = steps.pass_seconds(batch / counts), steps.exchange_seconds(counts)
        return cls(computing, exchange, 1.0 / (computing + exchange))


@dataclass(frozen=True, slots=True, eq=False)
class RingSpeed:
    """The speed of one job."""

    n_points: int
    """Distinct sizes that the job itself has measured."""
    confidence: float
    """0 (no measurement) to 1."""
    error: float
    """Relative error of the job's own measurements round the model."""
    batch: float
    """The global batch, in examples."""
    _steps: BatchSpeed = field(repr=False)
    _known: list[_Sizes] = field(repr=False)
    """The longest that was asked for."""
    _boundary: Boundary | None = field(default=None, repr=False)
    _most_measured: float = field(default=0.0, repr=False)
    """Workers, by the job or others."""

    @classmethod
    def fit(
        cls,
        own: RingSamples,
        others: Sequence[RingSamples] = (),
        boundary: Boundary | None = None,
        arguments: FloatArray | None = None,
    ) -> RingSpeed:
        """From the job's `own` measurements and those of `others` of the same kind, with any batch. Never raises on
        data: what is not finite and above 0 is ignored. `boundary`: where the job leaves a node; None: not known, or it
        never does. `arguments`: see `BatchSpeed.fit`.
        """
        return cls.fit_usable(own.usable(), own.batch, [other.usable() for other in others], boundary, arguments)

    @classmethod
    def fit_usable(
        cls,
        own: UsableSamples,
        batch: float,
        others: Sequence[UsableSamples] = (),
        boundary: Boundary | None = None,
        arguments: FloatArray | None = None,
    ) -> RingSpeed:
        """The same from what has been looked at, for a job with that global batch."""
        steps = BatchSpeed.fit_usable(own, batch / _USUAL_WORKERS, others, arguments)
        sizes = _Sizes.of(steps, batch, int(own.workers.max(initial=1)))
        error = relative_error(own.seconds, 1.0 / sizes.speeds[own.workers.astype(np.int64) - 1])
        most = max(float(each.workers.max(initial=0.0)) for each in (own, *others))
        return cls(steps.n_points, steps.confidence, error, batch, steps, [sizes], boundary, most)

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Seconds that one worker computes for a step, and those of the exchange of 2 and of 8."""
        computing, exchange, _ = self._known[0]
        parts = {"compute": computing[0], "exchange_2": exchange[1], "exchange_8": exchange[7]}
        return MappingProxyType({name: float(seconds) for name, seconds in parts.items()})

    def predict(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """(n,) steps per second with so many workers, above 0; `servers` says nothing."""
        del servers
        w = worker_counts(workers)
        most = int(w.max(initial=1))
        known = self._known[0]
        if most > len(known.speeds):
            known = self._known[0] = _Sizes.of(self._steps, self.batch, most)
        return known.speeds[w - 1]

    def predict_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold a measured speed with probability `coverage`."""
        _, low, high = self.predict_with_interval(workers, servers, coverage)
        return low, high

    def predict_with_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The mean with these bounds: see `SpeedLaw`."""
        w = worker_counts(workers)
        sigma = np.hypot(self._deviation(w), self.error)
        up = half_width(coverage) * np.minimum(sigma, _MOST_SIGMA)
        down = up
        if self._boundary is not None:
            down = self._boundary.widened(up, w, self._most_measured, coverage)
        mean = self.predict(w, servers)
        return mean, mean * np.exp(-down), mean * np.exp(up)

    def _deviation(self, workers: NDArray[np.int64]) -> FloatArray:
        """(n,) of the logarithm of a step, without that of its measurement."""
        found = self._steps.deviation(workers, self.batch / workers)
        if self._boundary is not None and self._most_measured > self._boundary.workers:
            beyond = workers > self._boundary.workers
            w = workers[beyond]
            found[beyond] = self._steps.deviation(w, self.batch / w, beyond=True)
        return found
