"""How the speed of one job grows with its workers alone: for all-reduce jobs, of which only sizes were measured.

ln f(w) is Amdahl's law plus a Gaussian process in u = ln w: a level, a slope, and a random walk. Between measured sizes
it interpolates, beyond them it goes on with the slope that was measured, ever less sure. Measurements of other jobs of
the same kind tell the shape; the level is each job's own, and closer to that of jobs with the same arguments.

How far jobs depart from the law differs: the variance of the process has an inverse gamma prior, so that intervals are
those of a Student's t process. They are wider where the measured sizes lie further apart than the prior has it, and
narrower where they lie closer. What is predicted, the mean, does not depend on it.

A script may not share its work: each worker makes all steps, and more of them are no faster. Such a curve is the same
process round a constant (`Unshared`). Which of the two a job has is told by how likely each makes what was measured;
the logarithm of the speed is the mean of both, and an interval that of their mixture.

References: Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, chapter 2 and section 9.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from optimus_models.history import FloatArray
from optimus_models.speed import half_width, student_half_width
from optimus_models.speed.boundary import Boundary

_SERIAL = 0.05
"""Part of a step on one worker that more workers do not share, before anything is measured: 8 workers are then believed
to be 5.9 times as fast as one, 16 are 9.1 times."""
_LEVEL = 3.0
"""Sigma of the logarithm of the level: unknown."""
_OWN_LEVEL = 0.15
"""... and of how jobs of the same kind and batch size differ in it."""
_CLEARLY_OTHER = 2.0
"""From so many sigmas on, jobs differ in their level by more than that: the same file may do other work."""
_SLOPE = 0.2
"""Sigma of how much faster or slower the speed grows with ln w than assumed."""
_WALK = 0.15
"""Sigma of what happens on top of that from w to e·w: a ring that leaves its node, a batch that fits a cache."""
_NOISE = 0.05
"""Relative error of one measured speed."""
_STRANGER_NOISE = 0.1
"""... and of another job's as evidence for this one's: its nodes were others."""
_SPREAD_EVIDENCE = 2.0
"""The belief that the process has the variance of its kernel counts as so many measured differences between sizes."""
_MOST_SIGMA = 3.0
"""Of a logarithm: beyond a factor of twenty nothing more is said."""
_COVERAGES = tuple(((np.arange(64) + 0.5) / 64).tolist())
"""Their ends stand for a distribution, each with the same probability."""
_NEGLIGIBLE = 1e-3
"""What is less probable does not widen an interval."""
_FARTHEST = 300.0
"""Bound of logarithms of speeds: nonsense stays finite."""


class Unshared(NamedTuple):
    """What is believed of a job whose workers may each do all of its work."""

    probability: float
    """That they do, before anything is measured."""
    arguments: FloatArray | None = None
    """`arguments` of `ScalingCurve.fit`, by levels of runs of which more workers are no faster."""


@dataclass(frozen=True, slots=True, eq=False)
class ScalingCurve:
    """The curve of one job."""

    n_points: int
    """Distinct sizes that the job itself has measured."""
    confidence: float
    """0 (no measurement) to 1."""
    error: float
    """Relative error of the measurements round the curve."""
    _at: FloatArray = field(repr=False)
    """(n,) ln w of the measurements."""
    _source: FloatArray = field(repr=False)
    """(n,) number of the job that measured; 0 is this one."""
    _inverse: FloatArray = field(repr=False)
    _weights: FloatArray = field(repr=False)
    _own_level: float = field(repr=False)
    """Sigma of how this job differs from the others in its level."""
    _alike: FloatArray = field(repr=False)
    """(n,) covariance of what arguments do to the level of this job and of the one that measured ..."""
    _own_variance: float = field(repr=False)
    """... and its variance."""
    _levels: FloatArray = field(repr=False)
    """(n,) covariance of the level of this job and of the one that measured."""
    _spread: float = field(repr=False)
    """Standard deviation of the process by that of its kernel."""
    _freedom: float = field(repr=False)
    """Degrees of freedom that this is known with."""
    _least_variance: float = field(repr=False)
    """Of the logarithm of the job's speed at the measured size where it is known best: doubtful of all sizes."""
    _serial: float = field(repr=False)
    """Part of a step on one worker that more do not share, before anything is measured."""
    _boundary: Boundary | None = field(repr=False)
    _rival: ScalingCurve | None = field(default=None, repr=False)
    """What it is if workers share the work and this one has that they do not, or the other way round ..."""
    _rivals_part: float = field(default=0.0, repr=False)
    """... and how probable that is, a half at most."""
    _coefficients: dict[str, float] = field(default_factory=dict, repr=False)
    """Empty until somebody asks."""

    @classmethod
    def fit(
        cls,
        workers: ArrayLike,
        speeds: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        others: Sequence[tuple[ArrayLike, ArrayLike]] = (),
        arguments: FloatArray | None = None,
        boundary: Boundary | None = None,
        unshared: Unshared | None = None,
    ) -> ScalingCurve:
        """Fit to parallel arrays, `speeds` in steps per second; `others` are those of jobs of the same kind, in the
        same unit. `weights` from 0 to 1 fade measurements. Never raises on data: what is not above 0 is ignored.
        `arguments`: covariance of what they do to levels, of this job and each of the others
        (`optimus_models.arguments.covariance`); None: nothing. `boundary`: where the job leaves a node; None: not
        known, or it never does. `unshared`: that its workers may each do all of the work; None: they share it.
        """
        v = 1.0 if weights is None else weights
        shared, likelihood = cls._fitted(_SERIAL, workers, speeds, v, others, arguments, boundary)
        if unshared is None:
            return shared
        other, others_likelihood = cls._fitted(1.0, workers, speeds, v, others, unshared.arguments, boundary)
        odds = np.exp(np.clip(others_likelihood - likelihood, -_FARTHEST, _FARTHEST)) * unshared.probability
        part = float(odds / (odds + 1.0 - unshared.probability))
        if part > 0.5:
            return replace(other, _rival=shared, _rivals_part=1.0 - part)
        return replace(shared, _rival=other, _rivals_part=part)

    @classmethod
    def _fitted(
        cls,
        serial: float,
        workers: ArrayLike,
        speeds: ArrayLike,
        weights: ArrayLike,
        others: Sequence[tuple[ArrayLike, ArrayLike]],
        arguments: FloatArray | None,
        boundary: Boundary | None,
    ) -> tuple[ScalingCurve, float]:
        """Round Amdahl's law with this serial part, and the logarithm of its likelihood."""
        own = _points(workers, speeds, weights, _NOISE, 0, serial)
        strangers = [_points(*each, 1.0, _STRANGER_NOISE, s, serial) for s, each in enumerate(others, start=1)]
        at, target, noise, source = (np.concatenate(columns) for columns in zip(own, *strangers, strict=True))
        which = source.astype(np.intp)
        between = np.zeros((len(others) + 1,) * 2) if arguments is None else arguments
        own_level, others_level = _levels(own, strangers, between)
        levels = np.where(source == 0.0, own_level, others_level)
        alone = _kernel(at, source, at, source, levels) + np.diag(noise**2)
        covariance = alone + between[np.ix_(which, which)]
        inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        coefficients = inverse @ target
        n_points = _distinct(own[0])
        misfit = target - (covariance - np.diag(noise**2)) @ coefficients
        error = float(np.sqrt(np.mean(misfit**2))) if len(at) else _NOISE
        n_shape = _distinct(at)
        spread, freedom, likelihood = _spread_of(at, target, noise, source, covariance)
        if between.any():  # arguments may do nothing to the speed; one is as probable as the other
            likelihood = float(np.logaddexp(likelihood, _spread_of(at, target, noise, source, alone)[2]) - np.log(2.0))
        evidence = n_points + 0.7 * (n_shape - n_points)
        sure = evidence / (evidence + 2.0)
        curve = cls(
            n_points,
            sure,
            max(error, _NOISE),
            at,
            source,
            inverse,
            coefficients,
            own_level,
            between[0, which],
            float(between[0, 0]),
            _level(own_level, source == 0.0),
            spread,
            freedom,
            _least_variance(at, own_level, between[0, which], float(between[0, 0]), source, inverse),
            serial,
            boundary,
        )
        return curve, likelihood

    @property
    def unshared(self) -> float:
        """How probable it is that each worker does all of the work."""
        return self._rivals_part if self._serial == _SERIAL else 1.0 - self._rivals_part

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Speed of one worker in steps/s, and how many times as fast 2, 4 and 8 are."""
        if not self._coefficients:
            one, two, four, eight = self.predict([1, 2, 4, 8], [0, 0, 0, 0]).tolist()
            self._coefficients.update(one=one, of_2=two / one, of_4=four / one, of_8=eight / one)
        return MappingProxyType(self._coefficients)

    def predict(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """Steps per second with so many workers, above 0; `servers` says nothing."""
        del servers
        return _speeds(self._mean(_logarithm(workers)))

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
        del servers
        at = _logarithm(workers)
        middle = self._mean(at)
        down, up = self._reach(at, middle, coverage)
        if self._boundary is not None:
            most = np.exp(self._at.max(initial=0.0))
            down = self._boundary.widened(down, np.round(np.exp(at)), round(float(most)), coverage)
        mean = _speeds(middle)
        return mean, mean * np.exp(-down), mean * np.exp(up)

    def _reach(self, at: FloatArray, middle: FloatArray, coverage: float) -> tuple[FloatArray, FloatArray]:
        """(n,) how far an interval reaches down and up from `middle` (n,), in logarithms."""
        if self._rival is None or self._rivals_part < _NEGLIGIBLE:
            (reach,) = self._half_widths(at, [coverage])
            return reach, reach
        values, parts = list[FloatArray](), list[FloatArray]()
        for curve, part in ((self, 1.0 - self._rivals_part), (self._rival, self._rivals_part)):
            apart, widths = curve._own_mean(at) - middle, curve._half_widths(at, _COVERAGES)
            values += [apart - widths, apart + widths]
            parts.append(np.full(2 * len(widths), part / (2 * len(widths))))
        possible = np.concatenate(values)
        order = np.argsort(possible, axis=0)
        below = np.cumsum(np.concatenate(parts)[order], axis=0)
        ends = [np.argmax(below >= part, axis=0) for part in ((1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0)]
        low, high = np.take_along_axis(possible, np.take_along_axis(order, np.array(ends), axis=0), axis=0)
        least = half_width(coverage) * self.error  # the mean is between them
        return np.maximum(-low, least), np.maximum(high, least)

    def _half_widths(self, at: FloatArray, coverages: Sequence[float]) -> FloatArray:
        """(c, n) of intervals with these coverages, in logarithms, of this belief alone."""
        cross = self._cross(at)
        prior = _variances(at, self._own_level) + self._own_variance
        variance = prior - np.einsum("ni,ij,nj->n", cross, self._inverse, cross)
        of_level = np.minimum(variance, self._least_variance)
        of_shape = self._spread * np.sqrt(np.maximum(variance - of_level, 0.0))
        of_all = np.sqrt(np.maximum(of_level, 0.0) + self.error**2)  # what lies off the curve widens it, too
        student = np.array([student_half_width(coverage, self._freedom) for coverage in coverages])
        normal = np.array([half_width(coverage) for coverage in coverages])
        of_shape, of_all = np.minimum(of_shape, _MOST_SIGMA), np.minimum(of_all, _MOST_SIGMA)
        return np.asarray(np.hypot(student[:, None] * of_shape, normal[:, None] * of_all))

    def _mean(self, at: FloatArray) -> FloatArray:
        """(n,) logarithms of speeds at logarithms of workers."""
        mean = self._own_mean(at)
        return mean if self._rival is None else mean + self._rivals_part * (self._rival._own_mean(at) - mean)

    def _own_mean(self, at: FloatArray) -> FloatArray:
        """The same of this belief alone."""
        return np.asarray(_prior(at, self._serial) + self._cross(at) @ self._weights)

    def _cross(self, at: FloatArray) -> FloatArray:
        return _shape(at, self._at) + self._levels + self._alike


def predict_many(curves: Sequence[ScalingCurve], curve: NDArray[np.intp], workers: FloatArray) -> FloatArray:
    """(n,) what `curves[curve[i]]` predicts for `workers[i]`, up to rounding, at a fraction of the time."""
    at = np.log(np.maximum(workers, 1.0))
    logs = _logs_of_many(curves, curve, at)
    rivals = [each._rival for each in curves if each._rival is not None]
    if rivals:
        has_rival = np.array([each._rival is not None for each in curves])
        here = has_rival[curve]
        parts = np.array([each._rivals_part for each in curves])[curve[here]]
        theirs = _logs_of_many(rivals, (has_rival.cumsum() - 1)[curve[here]], at[here])
        logs[here] += parts * (theirs - logs[here])
    return _speeds(logs)


def _logs_of_many(curves: Sequence[ScalingCurve], curve: NDArray[np.intp], at: FloatArray) -> FloatArray:
    """The logarithms of the same at logarithms of workers, of each belief alone."""
    most = max((len(each._weights) for each in curves), default=0)
    measured_at, weights, is_own, alike = (np.zeros((len(curves), most)) for _ in range(4))
    for row, each in enumerate(curves):
        n = len(each._weights)
        measured_at[row, :n], weights[row, :n], is_own[row, :n] = each._at, each._weights, each._source == 0.0
        alike[row, :n] = each._alike
    there = measured_at[curve]
    shape = _SLOPE**2 * at[:, None] * there + _WALK**2 * np.minimum(at[:, None], there)
    own_level, serial = (
        np.array([getattr(each, name) for each in curves])[curve] for name in ("_own_level", "_serial")
    )
    kernel = shape + (_LEVEL**2 + own_level[:, None] ** 2 * is_own[curve] + alike[curve])
    return np.asarray(_prior(at, serial) + np.einsum("ij,ij->i", kernel, weights[curve]))


def mean_level(workers: ArrayLike, speeds: ArrayLike, *, is_shared: bool = True) -> float:
    """Mean of the logarithms of measured speeds less how much so many workers are faster than one; 0 without any."""
    _, target, _, _ = _points(workers, speeds, 1.0, _NOISE, 0, _SERIAL if is_shared else 1.0)
    return float(target.mean()) if len(target) else 0.0


_Columns = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


def _points(
    workers: ArrayLike, speeds: ArrayLike, weights: ArrayLike, noise: float, source: int, serial: float = _SERIAL
) -> _Columns:
    """ln w, ln f less the prior, sigma and source of each usable measurement."""
    w, f = np.asarray(workers, dtype=np.float64).reshape(-1), np.asarray(speeds, dtype=np.float64).reshape(-1)
    v = np.broadcast_to(np.asarray(weights, dtype=np.float64), f.shape)
    usable = np.isfinite(f) & (f > 0) & np.isfinite(w) & (w >= 1) & (v > 0)
    at = np.log(w[usable])
    sigma = noise / np.sqrt(np.clip(v[usable], 1e-3, 1.0))
    target = np.clip(np.log(f[usable]), -_FARTHEST, _FARTHEST) - _prior(at, serial)
    return at, target, sigma, np.full(len(at), float(source))


def _levels(own: _Columns, others: Sequence[_Columns], arguments: FloatArray) -> tuple[float, float]:
    """Sigma of the level of this job and of each other one, by how much they differ at the same sizes.

    Where the difference is clear, it is the sigma itself (empirical Bayes): what was measured then decides the level,
    and the others tell the shape only. Others with other `arguments` differ by these.
    """
    sets: dict[tuple[bytes, float], list[float]] = {}
    for number, (at, target, _, _) in enumerate(others, 1):
        for size, value in zip(np.round(at, 9).tolist(), target.tolist(), strict=True):
            sets.setdefault((arguments[number].tobytes(), size), []).append(value)
    within = [value - sum(values) / len(values) for values in sets.values() for value in values if len(values) > 1]
    spread = float(np.std(within)) if len(within) > 1 else 0.0
    others_level = spread if spread > _CLEARLY_OTHER * _OWN_LEVEL else _OWN_LEVEL
    theirs: dict[float, list[float]] = {}
    for at, target, _, _ in others:
        for size, value in zip(np.round(at, 9).tolist(), target.tolist(), strict=True):
            theirs.setdefault(size, []).append(value)
    shared = [(i, theirs[size]) for i, size in enumerate(np.round(own[0], 9).tolist()) if size in theirs]
    if not shared:
        return others_level, others_level
    apart = abs(float(np.mean([own[1][i] - np.mean(values) for i, values in shared])))
    noise = float(np.min(own[2][[i for i, _ in shared]]))
    expected = np.sqrt(noise**2 + _STRANGER_NOISE**2 + 2.0 * others_level**2)
    return (max(apart, others_level) if apart > _CLEARLY_OTHER * expected else others_level), others_level


def _least_variance(
    at: FloatArray, own_level: float, alike: FloatArray, own: float, source: FloatArray, inverse: FloatArray
) -> float:
    """Of the job's own curve, number 0, at the measured sizes (n,); infinite without any."""
    cross = _shape(at, at) + _level(own_level, source == 0.0) + alike
    known = np.einsum("ni,ij,nj->n", cross, inverse, cross)
    return float(np.min(_variances(at, own_level) + own - known, initial=np.inf))


def observed_jump(workers: ArrayLike, speeds: ArrayLike, node: int) -> float | None:
    """By how much a job was slower beyond a node of so many workers than its sizes within one tell, in logarithms; the
    mean over its sizes, at least 0. None: it did not measure both."""
    at, target, _, _ = _points(workers, speeds, 1.0, _NOISE, source=0)
    w, f = np.exp(at), np.exp(target + _prior(at))
    beyond = np.round(w) > node
    if beyond.all() or not beyond.any():
        return None
    told = ScalingCurve.fit(w[~beyond], f[~beyond]).predict(w[beyond], w[beyond])
    return max(float(np.mean(np.log(told / f[beyond]))), 0.0)


def _spread_of(
    at: FloatArray, target: FloatArray, noise: FloatArray, source: FloatArray, covariance: FloatArray
) -> tuple[float, float, float]:
    """How far measurements lie apart by how far their prior `covariance` (n, n) has it, its degrees of freedom, and the
    logarithm of their likelihood, whatever their level, up to a constant.

    With y the measurements, n of them, and K their covariance, the scale of K has the mean (ν + q)/(ν + n - 1), where q
    is the squared length of y - its level in units of K, and ν the evidence of the prior. A size that a job measured
    again and again counts once: its error is mostly systematic.
    """
    sizes = list(zip(source.tolist(), np.round(at, 9).tolist(), strict=True))
    place = {size: number for number, size in enumerate(dict.fromkeys(sizes))}
    n = len(place)
    if n < 2:
        return 1.0, _SPREAD_EVIDENCE, 0.0
    if n < len(at):
        weights = (np.array([place[size] for size in sizes]) == np.arange(n)[:, None]) / noise**2
        weights /= weights.sum(axis=1, keepdims=True)
        least = np.array([noise[row > 0].min() for row in weights])
        target = weights @ target
        covariance = weights @ (covariance - np.diag(noise**2)) @ weights.T + np.diag(least**2)
    ones = np.ones(n)
    by_target, by_level = np.linalg.solve(covariance, np.column_stack([target, ones])).T
    information = float(ones @ by_level)
    misfit = max(float(target @ by_target - (ones @ by_target) ** 2 / information), 0.0)
    freedom = _SPREAD_EVIDENCE + n - 1.0
    likelihood = -0.5 * (
        float(np.linalg.slogdet(covariance)[1])
        + float(np.log(information))
        + freedom * float(np.log1p(misfit / _SPREAD_EVIDENCE))
    )
    return float(np.sqrt((_SPREAD_EVIDENCE + misfit) / freedom)), freedom, likelihood


def _distinct(at: FloatArray) -> int:
    """How many of the sizes are different."""
    return len(set(np.round(at, 9).tolist()))


def _logarithm(workers: ArrayLike) -> FloatArray:
    return np.asarray(np.log(np.maximum(np.asarray(workers, dtype=np.float64).reshape(-1), 1.0)))


def _prior(at: FloatArray, serial: float | FloatArray = _SERIAL) -> FloatArray:
    """ln of Amdahl's law, w/(1 + s(w - 1)), at ln w; none of its work is shared where s is 1."""
    return np.asarray(at - np.log1p(serial * np.expm1(at)))


def _speeds(logs: FloatArray) -> FloatArray:
    """Of their logarithms, finite."""
    return np.asarray(np.exp(np.clip(logs, -_FARTHEST, _FARTHEST)))


def _kernel(
    a: FloatArray, a_source: FloatArray, b: FloatArray, b_source: FloatArray, own_levels: FloatArray | float
) -> FloatArray:
    """(n, m) prior covariance; `own_levels`: sigma of the level of each source, of b (m,) or of all."""
    return _shape(a, b) + _level(own_levels, a_source[:, None] == b_source)


def _shape(a: FloatArray, b: FloatArray) -> FloatArray:
    """(n, m) the part of `_kernel` that is a slope and a walk."""
    column = a[:, None]
    return np.asarray(_SLOPE**2 * (column * b) + _WALK**2 * np.minimum(column, b))


def _level(own_levels: FloatArray | float, is_same: NDArray[np.bool_]) -> FloatArray:
    """The part of it that is the level, by whether it is the same job's."""
    return np.asarray(_LEVEL**2 + np.square(own_levels) * is_same)


def _variances(at: FloatArray, own_level: float) -> FloatArray:
    """(n,) the diagonal of `_kernel` of one source with itself."""
    return np.asarray(_SLOPE**2 * (at * at) + _WALK**2 * at + (_LEVEL**2 + own_level * own_level))
