"""Step time of an all-reduce job by its workers and by what each of them computes at once.

A step is `passes` gradients of m examples each, and one exchange:

    T(w, m, passes) = passes · g(m) + x(w),   x(1) = 0

ln g over ln m and ln x over ln w are Gaussian processes round a prior: m plus a fixed part, and a flat exchange. Other
jobs of the same kind tell the shape of both; the level is each job's own, the more so, the more their arguments differ.

References: Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, chapter 2; Qiao et al.,
"Pollux", OSDI 2021, section 3.2, for the split of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from optimus_models.history import FloatArray

_FIXED = 0.1
"""Time of a pass that does not depend on its examples, in that of a full pass, before anything is measured."""
_EXCHANGE = 0.1
"""An exchange in full passes, before one is measured."""
_NOISE = 0.05
"""Relative error of one measurement."""
_STRANGER_NOISE = 0.1
"""... and of another job's as evidence for this one's."""
_LEAST_WEIGHT = 1e-3
_LEAST_SHARE = 1e-3
"""An exchange below this part of its step is no measurement of one."""
_FARTHEST = 100.0
"""Bound of logarithms: nonsense stays finite."""


class _Kernel(NamedTuple):
    """Sigmas of a logarithm over another, and how far deviations reach."""

    level: float
    own_level: float
    """How much jobs of the same kind differ."""
    slope: float
    deviation: float
    reach: float

    def level_of(self, a_source: NDArray[Any], b_source: NDArray[Any]) -> FloatArray:
        """Prior covariance of the levels of the jobs that two measurements are of; arrays that broadcast."""
        return np.asarray(self.level**2 + self.own_level**2 * (a_source == b_source))

    def __call__(self, a: FloatArray, b: FloatArray, level: FloatArray) -> FloatArray:
        """(n, m) prior covariance. `level`: see `level_of`."""
        column = a[:, None]
        near: FloatArray = column - b
        np.abs(near, out=near)
        near /= -self.reach
        np.exp(near, out=near)
        near *= self.deviation**2
        found: FloatArray = self.slope**2 * column * b
        found += level
        found += near
        return found

    def near(self, a: FloatArray, b: FloatArray) -> FloatArray:
        """(n, m) the part of the prior covariance that is a deviation."""
        return np.asarray(self.deviation**2 * np.exp(-np.abs(a[:, None] - b) / self.reach))

    def variance(self, a: FloatArray) -> FloatArray:
        """(n,) the prior covariance of each with itself."""
        return np.asarray(self.level**2 + self.own_level**2 + self.slope**2 * a * a + self.deviation**2)


_PASS = _Kernel(level=3.0, own_level=0.1, slope=0.2, deviation=0.2, reach=2.0)
_RING = _Kernel(level=1.5, own_level=0.2, slope=0.3, deviation=1.0, reach=1.0)
"""Exchanges differ by factors: within a machine, between machines, by how well they overlap."""
_RING_BEYOND = _RING._replace(deviation=0.4)
"""... and how far those differ of rings that all leave a node. Only doubts go by it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    """A Gaussian process after its measurements (n,)."""

    kernel: _Kernel
    at: FloatArray
    level: FloatArray
    """(n,) prior covariance of the level of the job itself, number 0, with that of each measurement's."""
    of_arguments: float
    """Prior variance of what the job's arguments do to its level."""
    weights: FloatArray
    covariance: FloatArray
    """(n, n) of what was measured."""

    @classmethod
    def fit(
        cls,
        kernel: _Kernel,
        at: FloatArray,
        values: FloatArray,
        noise: FloatArray,
        source: NDArray[np.int64],
        arguments: FloatArray | None = None,
    ) -> _Process:
        """`source` (n,): the job of each measurement; `arguments`: see `BatchSpeed.fit`."""
        levels, own = kernel.level_of(source[:, None], source), kernel.level_of(np.zeros(1), source)
        of_arguments = 0.0
        if arguments is not None:
            levels, own = levels + arguments[source[:, None], source], own + arguments[0, source]
            of_arguments = float(arguments[0, 0])
        covariance = kernel(at, at, levels)
        covariance.flat[:: len(at) + 1] += noise**2  # its diagonal
        weights = np.asarray(np.linalg.solve(covariance, values), dtype=np.float64)
        return cls(kernel, at, own, of_arguments, weights, covariance)

    def __call__(self, at: FloatArray) -> FloatArray:
        """(m,) of the job itself."""
        return self._cross(at) @ self.weights

    def with_deviation(self, at: FloatArray, doubt: _Kernel | None = None) -> tuple[FloatArray, FloatArray]:
        """(m,) the same, and its standard deviation there, if the kernel were `doubt`, whose deviations differ."""
        known = cross = self._cross(at)
        kernel, covariance = self.kernel, self.covariance
        if doubt is not None and doubt != kernel:
            known = cross + doubt.near(at, self.at) - kernel.near(at, self.at)
            covariance = covariance + doubt.near(self.at, self.at) - kernel.near(self.at, self.at)
            kernel = doubt
        variance = kernel.variance(at) + self.of_arguments
        variance -= np.einsum("mn,nm->m", known, np.linalg.solve(covariance, known.T))
        return cross @ self.weights, np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def _cross(self, at: FloatArray) -> FloatArray:
        return self.kernel(at, self.at, self.level)


class BatchSamples(NamedTuple):
    """Measured steps of one job; arrays of one length."""

    workers: ArrayLike
    local: ArrayLike
    """Examples of one pass of one worker."""
    passes: ArrayLike
    seconds: ArrayLike
    """Of a step."""
    exchange_seconds: ArrayLike
    """That part of it in which gradients travelled and nothing was computed."""
    weights: ArrayLike = 1.0
    """From 0 to 1: they fade measurements."""


class UsableSamples(NamedTuple):
    """Those of `BatchSamples` that are finite and possible; arrays (n,)."""

    workers: FloatArray
    local: FloatArray
    passes: FloatArray
    seconds: FloatArray
    exchange: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, samples: BatchSamples) -> UsableSamples:
        """Never raises on data."""
        w, m, passes, seconds, exchange = (np.asarray(column, dtype=np.float64).reshape(-1) for column in samples[:5])
        weights = np.full(w.shape, samples.weights, dtype=np.float64)
        weights = np.minimum(np.maximum(weights, _LEAST_WEIGHT), 1.0)
        good = (w >= 1) & (w < np.inf) & (m >= 1) & (m < np.inf) & (passes >= 1) & (passes < np.inf)  # NaN is neither
        good &= (seconds < np.inf) & (exchange >= 0) & (seconds > exchange)
        if good.all():
            return cls(w, m, passes, seconds, exchange, weights)
        return cls(w[good], m[good], passes[good], seconds[good], exchange[good], weights[good])


@dataclass(frozen=True, slots=True, eq=False)
class BatchSpeed:
    """The step time of one job."""

    n_points: int
    """Distinct numbers of workers that the job itself has measured."""
    confidence: float
    """0 (no measurement) to 1."""
    per_pass: float
    """Examples of a full pass."""
    _full: float = field(repr=False)
    """Logarithm of its seconds."""
    _pass: _Process = field(repr=False)
    _ring: _Process = field(repr=False)

    @classmethod
    def fit(
        cls,
        own: BatchSamples,
        per_pass: float,
        others: Sequence[BatchSamples] = (),
        arguments: FloatArray | None = None,
    ) -> BatchSpeed:
        """From the job's `own` measurements and those of `others` of the same kind. Never raises on data: what is not
        finite and above 0 is ignored. `arguments` (n + 1, n + 1): covariance of what arguments do to the logarithm of
        the time of a pass, of the job and of n others (`optimus_models.arguments`); None: all have the same.
        """
        return cls.fit_usable(UsableSamples.of(own), per_pass, [UsableSamples.of(each) for each in others], arguments)

    @classmethod
    def fit_usable(
        cls,
        own: UsableSamples,
        per_pass: float,
        others: Sequence[UsableSamples] = (),
        arguments: FloatArray | None = None,
    ) -> BatchSpeed:
        """The same from what has been looked at: others are asked about again and again."""
        columns = (own, *others)
        w, m, passes, seconds, exchange, weights = (np.concatenate(each) for each in zip(*columns, strict=True))
        source = np.arange(len(columns)).repeat([len(each.workers) for each in columns])
        noise = np.where(source == 0, _NOISE, _STRANGER_NOISE) / np.sqrt(weights)
        prior = np.log(m + _FIXED * per_pass)
        times = _bounded((seconds - exchange) / passes) - prior
        computing = _Process.fit(_PASS, np.log(m), times, noise, source, arguments)
        rings = (w > 1) & (exchange > _LEAST_SHARE * seconds)
        full = float(_full_pass(computing, per_pass))
        values = _bounded(exchange[rings]) - full - np.log(_EXCHANGE)
        ring = _Process.fit(_RING, np.log(w[rings]), values, 2.0 * noise[rings], source[rings])
        n_points, n_shape = len(set(own.workers.tolist())), len(set(w.tolist()))
        evidence = n_points + 0.7 * (n_shape - n_points)
        return cls(n_points, evidence / (evidence + 2.0), per_pass, full, computing, ring)

    def pass_seconds(self, local: ArrayLike) -> FloatArray:
        """(n,) one gradient of so many examples."""
        m = _at_least_1(local)
        return self._computing(m, self._pass(np.log(m)))

    def exchange_seconds(self, workers: ArrayLike) -> FloatArray:
        """(n,) the visible exchange among so many workers."""
        w = _at_least_1(workers)
        return self._exchange(w, self._ring(np.log(w)))

    def _computing(self, m: FloatArray, deviation: FloatArray) -> FloatArray:
        return _exp(np.log(m + _FIXED * self.per_pass) + deviation)

    def _exchange(self, w: FloatArray, deviation: FloatArray) -> FloatArray:
        return np.where(w > 1, _exp(self._full + np.log(_EXCHANGE) + deviation), 0.0)

    def step_seconds(self, workers: ArrayLike, local: ArrayLike, passes: ArrayLike) -> FloatArray:
        """(n,) a whole step, above 0."""
        return _at_least_1(passes) * self.pass_seconds(local) + self.exchange_seconds(workers)

    def error(self, own: UsableSamples) -> float:
        """Root mean square of the logarithms of measured over predicted step times, the noise of one at least."""
        return relative_error(own.seconds, self.step_seconds(own.workers, own.local, own.passes))

    def deviation(self, workers: ArrayLike, local: ArrayLike, *, beyond: bool = False) -> FloatArray:
        """(n,) standard deviation of the logarithm of a step of one pass, without that of its measurement.

        `beyond`: all these workers are beyond the boundary of a node, and others there were measured.
        """
        w, m = _at_least_1(workers), _at_least_1(local)
        by_pass, passes = self._pass.with_deviation(np.log(m))
        by_ring, rings = self._ring.with_deviation(np.log(w), _RING_BEYOND if beyond else _RING)
        computing, exchange = self._computing(m, by_pass), self._exchange(w, by_ring)
        return np.asarray(np.hypot(computing * passes, exchange * rings) / (computing + exchange))


def _at_least_1(values: ArrayLike) -> FloatArray:
    """As a vector."""
    return np.maximum(np.asarray(values, dtype=np.float64).reshape(-1), 1.0)


def relative_error(measured: FloatArray, predicted: FloatArray) -> float:
    """Root mean square of the logarithms of measured (n,) over predicted seconds, the noise of one at least."""
    if not len(measured):
        return _NOISE
    misfit = _bounded(measured) - _bounded(predicted)
    return max(float(np.sqrt(np.mean(misfit**2))), _NOISE)


def _full_pass(process: _Process, per_pass: float) -> FloatArray:
    """Logarithm of the seconds of a full pass."""
    return np.asarray(np.log((1.0 + _FIXED) * per_pass) + process(np.log([max(per_pass, 1.0)]))[0])


def _bounded(seconds: FloatArray) -> FloatArray:
    return np.asarray(np.minimum(np.maximum(np.log(np.maximum(seconds, 1e-300)), -_FARTHEST), _FARTHEST))


def _exp(logs: FloatArray) -> FloatArray:
    return np.asarray(np.exp(np.minimum(np.maximum(logs, -3.0 * _FARTHEST), 3.0 * _FARTHEST)))


def worker_counts(workers: ArrayLike) -> NDArray[np.int64]:
    """Numbers of workers as a vector, each at least 1."""
    return np.maximum(np.asarray(workers, dtype=np.int64).reshape(-1), 1)
