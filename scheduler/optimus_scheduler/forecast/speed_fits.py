"""The speeds of one job: from what it measured, from what ended jobs of the same task did, from its layers.

| what is known | speeds come from |
|---|---|
| measured sizes | these; ended jobs of the same task fill in how it scales, at the level that was measured |
| ... of an all-reduce job | the same from how long it computes and exchanges (`optimus_models.speed.ring`) |
| ... that does not tell its exchange | the same with a curve over workers alone (`optimus_models.speed.scaling`) |
| nothing measured, ended jobs of the same task | theirs, corrected for another batch size |
| neither, but the layers of its network | arithmetic (`optimus_models.analytic`), until the first measurement |
| whatever is known, of a job with an elastic batch | see `goodput_fits` |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.arguments import are_same_but_for, covariance, naming, predicted
from optimus_models.speed.batch import UsableSamples
from optimus_models.speed.boundary import Boundary
from optimus_models.speed.goodput import StepTimes
from optimus_models.speed.measurements import present_speeds
from optimus_models.speed.ring import RingSamples, RingSpeed
from optimus_models.speed.scaling import ScalingCurve, Unshared, mean_level
from optimus_models.speed.servers import SpeedModel
from optimus_scheduler.forecast.goodput_fits import ElasticData, fit_goodput, fit_step_times, is_elastic
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import Architecture, EndedJob, Job, JobSpec, Mode, SpeedSample, SpeedSource
from optimus_scheduler.settings import Settings

FloatArray = NDArray[np.float64]

MAX_SIMILAR = 4
"""Ended jobs with servers whose speeds are used, the newest."""
MAX_SIMILAR_RINGS = 8
"""... and all-reduce jobs."""
_OTHERS_WEIGHT = 0.3
"""A size measured by another job counts as so much of a measured one, and less with each size measured by itself."""
_LEVEL_DOUBT, _USUAL_LEVEL = 0.5, 0.3
"""Squared error of the others' model at one size, over how much levels of jobs of one task differ (squared, in
logarithms), and how much that usually is; measured, see docs/models.md."""
_LEVEL_RIDGE = 0.2
"""Noise of a measured speed over how much the levels of jobs of one task differ, both in logarithms."""
_ARGUMENTS_RIDGE = _LEVEL_RIDGE * _USUAL_LEVEL
"""The same for jobs with other arguments: their levels differ by a factor of 3.6 (80 %; `optimus_models.arguments`)."""
UNSHARED = 0.05
"""How probable it is of a script that each of its workers does all of the work, before two sizes are known; by measured
speeds of others' trainings (docs/studies/speeds.md). Workers of our own jobs share theirs."""
_SAME_RATIO = 0.1
"""Logarithms of ratios of steps that are no further apart are equal: the last batch of an epoch may be smaller."""
_LEAST_WEIGHT = 0.1
"""Weight of old measurements of all-reduce jobs."""
_OTHERS_TRUST, _STRANGERS_TRUST, _ANALYSIS_TRUST = 0.9, 0.6, 0.2
"""What is left of the confidence in speeds that ended jobs of the same project measured with the same batch, ended
jobs otherwise, and that were calculated; as long as the job itself has measured nothing."""


class SpeedData(NamedTuple):
    """All that the speeds of a job are a function of."""

    samples: tuple[SpeedSample, ...]
    mode: Mode
    architecture: Architecture
    batch: int | None
    project: str
    half_life_seconds: float
    full_weight_steps: int
    similar: tuple[EndedJob, ...]
    calculated: tuple[SpeedSample, ...]
    """Speeds by arithmetic, some sizes."""
    arguments: tuple[str, ...] = ()
    elastic: ElasticData | None = None
    """What is known beside that of a job with an elastic batch."""
    boundary: Boundary | None = None
    steps_per_epoch: float | None = None
    """Of a script that tells no batch, once it has measured a speed; None: not known."""

    @classmethod
    def of(cls, job: Job, settings: Settings) -> SpeedData:
        spec = job.spec
        kind = (spec.mode, spec.architecture)
        most = MAX_SIMILAR if spec.architecture.has_servers else MAX_SIMILAR_RINGS
        elastic = ElasticData.of(job, settings)
        is_script = spec.architecture is Architecture.SCRIPT
        similar = tuple(
            ended
            for ended in with_counts_aside(job.similar, spec.arguments)
            if (ended.mode, ended.architecture) == kind
            and ended.speed_samples
            and is_elastic(ended) == (elastic is not None)
        )
        return cls(
            job.speed_samples,
            spec.mode,
            spec.architecture,
            spec.counted_batch,
            spec.project,
            settings.sample_half_life_seconds,
            settings.full_weight_steps,
            # Those with the same arguments and batch first, as they scale alike; of these the newest.
            tuple(sorted(similar, key=lambda ended: _likeness(spec, ended)))[-most:],
            () if similar or job.speed_samples else job.calculated_speeds,
            spec.arguments,
            elastic,
            job.boundary,
            job.steps_per_epoch if is_script and job.speed_samples and not spec.counted_batch else None,
        )


def with_counts_aside(runs: Sequence[EndedJob], arguments: tuple[str, ...]) -> Sequence[EndedJob]:
    """Ended runs, where those whose arguments differ from these only in how many epochs or steps they name have the
    very same: as many more of them are no faster and no slower."""
    counts = [(each.arguments, each.n_epochs or float(each.total_steps)) for each in runs if each.total_steps]
    names = naming(counts) if any(each.arguments != arguments for each in runs) else frozenset()
    if not names:
        return runs
    return [
        replace(each, arguments=arguments) if are_same_but_for(names, each.arguments, arguments) else each
        for each in runs
    ]


class _Points(NamedTuple):
    """Speeds at sizes; arrays (n,)."""

    workers: FloatArray
    servers: FloatArray
    speeds: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, samples: Sequence[SpeedSample], weights: FloatArray) -> _Points:
        workers = np.array([sample.workers for sample in samples], dtype=np.float64)
        # All-reduce has no servers: one exchange among the workers.
        servers = np.array([max(sample.servers, 1) for sample in samples], dtype=np.float64)
        return cls(workers, servers, np.array([sample.steps_per_second for sample in samples]), weights)

    def fit(self, data: SpeedData) -> SpeedModel:
        return _fit(self, data.mode, data.batch)


def fit_speeds(data: SpeedData, known: Mapping[SpeedData, StepTimes] | None = None) -> Speeds:
    """The speeds of one job. `known`: step times of jobs with an elastic batch, by `without_noise` of their data."""
    if data.elastic is not None:
        return _fit_goodput(data, data.elastic, known or {})
    return _fit_servers(data) if data.architecture.has_servers else _fit_scaling(data)


def _fit_ring(data: SpeedData, batch: int) -> Speeds:
    """Of an all-reduce job that reports the time of its exchange, or resembles jobs that did."""
    points = _own_points(data)
    own = _ring_samples(data.samples, batch, points.speeds)._replace(weights=np.maximum(points.weights, _LEAST_WEIGHT))
    told = tuple(each for each in data.similar if each.global_batch_size)
    ended = [_reported(each.speed_samples, each.global_batch_size or 0) for each in told]
    model = RingSpeed.fit_usable(own.usable(), float(batch), ended, data.boundary, _of_measured(data, told))
    if not model.n_points and not ended:
        return Speeds(model, None)
    trust, doubt = (1.0, 0.0) if model.n_points else (_trust(data), _level_by_arguments(data, _mean_levels(data))[1])
    return Speeds(replace(model, confidence=model.confidence * trust), _source(data, model.n_points), doubt)


def _of_measured(data: SpeedData, similar: tuple[EndedJob, ...]) -> FloatArray | None:
    """`_of_arguments` of a job that has measured its own speed, beside these jobs. As long as it has not, they tell its
    level, too (`_level_by_arguments`)."""
    return _of_arguments(data._replace(similar=similar), is_shared=True) if data.samples else None


@lru_cache(maxsize=1024)
def _reported(samples: tuple[SpeedSample, ...], batch: int) -> UsableSamples:
    """What an ended job measured."""
    return _ring_samples(samples, batch).usable()


def _ring_samples(samples: Sequence[SpeedSample], batch: int, speeds: FloatArray | None = None) -> RingSamples:
    """`speeds`: what those of the samples would be now. Without the exchange a sample is not usable."""
    reported = np.array([one.steps_per_second for one in samples], dtype=np.float64)
    seconds = 1.0 / np.where(reported > 0, reported, np.nan)
    exchange = np.array([np.nan if one.exchange_seconds is None else one.exchange_seconds for one in samples])
    slower = 1.0 if speeds is None else reported / speeds
    return RingSamples([one.workers for one in samples], seconds * slower, exchange * slower, float(batch))


def _tells_exchange(data: SpeedData) -> bool:
    """Of the job's own speeds all, or before there are any those of a job like it."""
    if data.samples:
        return all(one.exchange_seconds is not None for one in data.samples)
    return any(one.exchange_seconds is not None for ended in data.similar for one in ended.speed_samples)


def _fit_scaling(data: SpeedData) -> Speeds:
    """Without servers: a curve over workers, whose shape ended jobs of the same task help to fit."""
    if data.batch and _tells_exchange(data):
        return _fit_ring(data, data.batch)
    own = _own_points(data)
    ended = [
        (
            [sample.workers for sample in each.speed_samples],
            [sample.steps_per_second * _batch_ratio(each, data) for sample in each.speed_samples],
        )
        for each in data.similar
    ]
    calculated = ([sample.workers for sample in data.calculated], [each.steps_per_second for each in data.calculated])
    others = ended or ([calculated] if data.calculated else [])
    weights = np.maximum(own.weights, _LEAST_WEIGHT)  # an old size tells the shape even so
    unshared = None
    if data.architecture is Architecture.SCRIPT:
        unshared = Unshared(UNSHARED, _of_arguments(data, is_shared=False))
    curve = ScalingCurve.fit(
        own.workers,
        own.speeds,
        weights=weights,
        others=others,
        arguments=_of_arguments(data, is_shared=True),
        boundary=data.boundary,
        unshared=unshared,
    )
    if not curve.n_points and not others:
        return Speeds(curve, None)
    trust = 1.0 if curve.n_points else _trust(data)
    return Speeds(replace(curve, confidence=curve.confidence * trust), _source(data, curve.n_points))


def _of_arguments(data: SpeedData, *, is_shared: bool) -> FloatArray | None:
    """Covariance of what arguments do to the speeds of the job and of those like it; None: all have the same, or there
    are none. `is_shared`: whether workers share the work."""
    if all(each.arguments == data.arguments for each in data.similar):
        return None
    theirs = (each.arguments for each in data.similar)
    return covariance(data.arguments, list(zip(theirs, _mean_levels(data, is_shared=is_shared), strict=True)))


def _mean_levels(data: SpeedData, *, is_shared: bool = True) -> list[float]:
    """Logarithms of the speeds of one worker of the jobs like it, by all that they measured."""
    return [
        mean_level(
            [one.workers for one in each.speed_samples],
            [one.steps_per_second * _batch_ratio(each, data) for one in each.speed_samples],
            is_shared=is_shared,
        )
        for each in data.similar
    ]


def _likeness(spec: JobSpec, ended: EndedJob) -> tuple[bool, bool]:
    return ended.arguments == spec.arguments, ended.global_batch_size == spec.counted_batch


def _fit_goodput(data: SpeedData, elastic: ElasticData, known: Mapping[SpeedData, StepTimes]) -> Speeds:
    times = known.get(without_noise(data))
    if times is None:
        times = fit_step_times(data.samples, data.similar, elastic.limits, _of_measured(data, data.similar))
    n_own = times.speed.n_points
    if not n_own and not data.similar:
        return Speeds(fit_goodput(times, elastic, data.similar, 0.0), None)
    trust = 1.0 if n_own else _trust(data)
    return Speeds(fit_goodput(times, elastic, data.similar, trust), _source(data, n_own))


def without_noise(data: SpeedData) -> SpeedData:
    """What step times are a function of: noise scales change more often."""
    return data if data.elastic is None else data._replace(elastic=data.elastic.without_noise())


def _batch_ratio(ended: EndedJob, data: SpeedData) -> float:
    """Steps of this job's batch in one of the ended job's, by the examples in them.

    A script with a batch for each process makes larger and fewer steps with more workers, and counts those of its first
    size. Where it tells no batch, the steps of an epoch tell that: of runs with the same arguments, and of others where
    they differ just as their sizes do.
    """
    ours, theirs = data.batch, ended.global_batch_size
    if ours and theirs:
        return theirs / ours if data.mode is Mode.SYNC else 1.0
    if not data.steps_per_epoch or not ended.steps_per_epoch or ended.global_batch_size:
        return 1.0
    ratio = data.steps_per_epoch / ended.steps_per_epoch
    sizes = [its.workers / own.workers for its in ended.speed_samples for own in data.samples]
    as_sizes = any(abs(math.log(ratio / size)) < _SAME_RATIO for size in sizes)
    return ratio if as_sizes or ended.arguments == data.arguments else 1.0


def _fit_servers(data: SpeedData) -> Speeds:
    own = _own_points(data)
    measured = own.fit(data)
    others, doubt = _others_points(data)
    if not len(others.speeds):
        return Speeds(measured, SpeedSource.MEASURED if measured.n_points else None)
    n_own = measured.n_points
    weights = np.full(len(others.speeds), _OTHERS_WEIGHT / (1.0 + n_own))
    if n_own:
        others = others._replace(speeds=others.speeds * _level(own, others.fit(data)))
    model = _joined(own, others._replace(weights=weights)).fit(data)
    trust = 1.0 - (1.0 - _trust(data)) / (1.0 + n_own) ** 1.5
    confidence = max(measured.confidence, model.confidence * trust)
    return Speeds(replace(model, confidence=confidence), _source(data, n_own), 0.0 if n_own else doubt)


def _joined(first: _Points, second: _Points) -> _Points:
    return _Points(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _own_points(data: SpeedData) -> _Points:
    """What the job measured, brought up to the present; old and short measurements count less."""
    samples = data.samples
    # Only the proportions of the weights matter, so ages may be taken from the newest sample instead of from now.
    at = np.array([sample.at for sample in samples], dtype=np.float64)
    ages = at.max(initial=0.0) - at
    exactness = np.array([min(sample.n_steps / data.full_weight_steps, 1.0) for sample in samples])
    points = _Points.of(samples, exactness * np.exp2(-np.minimum(ages / data.half_life_seconds, 50.0)))
    present = present_speeds(points.workers, points.servers, points.speeds, at)
    return points._replace(speeds=present.speeds, weights=points.weights * present.weights)


def _others_points(data: SpeedData) -> tuple[_Points, float]:
    """What ended jobs measured, each size once, and the sigma of the level; without any, what was calculated."""
    if not data.similar:
        return _Points.of(data.calculated, np.ones(len(data.calculated))), 0.0
    runs = [(ended.arguments, _converted(ended, data)) for ended in data.similar]
    shape, levels = _shape_and_levels(runs)
    level, sigma = _level_by_arguments(data, levels)
    merged = [SpeedSample(*size, math.exp(value + level)) for size, value in sorted(shape.items())]
    return _Points.of(merged, np.ones(len(merged))), sigma


def _shape_and_levels(
    runs: Sequence[tuple[tuple[str, ...], Iterable[SpeedSample]]],
) -> tuple[dict[tuple[int, int], float], list[float]]:
    """Logarithms of the speeds of sizes that several jobs have in common, and of how many times as fast each job was.
    `runs`: the arguments of each and what it measured.

    Least squares of log speed = shape(size) + level(arguments) + level(job): a size that only a fast job measured is
    not fast for that, and two jobs with the same arguments tell of one another's sizes.
    """
    points = [
        (run, (each.workers, each.servers), math.log(each.steps_per_second))
        for run, (_, samples) in enumerate(runs)
        for each in samples
    ]
    kinds = list(dict.fromkeys(arguments for arguments, _ in runs))
    sizes = list(dict.fromkeys(size for _, size, _ in points))
    of_run = [len(runs) + kinds.index(arguments) for arguments, _ in runs]
    n_levels = len(runs) + len(kinds)
    places = {size: n_levels + number for number, size in enumerate(sizes)}
    rows = np.zeros((len(points) + n_levels, n_levels + len(sizes)))
    logs = np.zeros(len(rows))
    for row, (run, size, log) in enumerate(points):
        rows[row, run] = rows[row, places[size]] = 1.0
        rows[row, of_run[run]] = float(len(kinds) > 1)
        logs[row] = log
    # Jobs without a size in common are alike.
    ridge = [_LEVEL_RIDGE] * len(runs) + [_ARGUMENTS_RIDGE] * len(kinds)
    rows[len(points) :, :n_levels] = np.diag(ridge)
    found = np.linalg.lstsq(rows, logs, rcond=None)[0].tolist()
    levels = [found[run] + found[kind] for run, kind in enumerate(of_run)]
    return {size: found[place] for size, place in places.items()}, levels


def _level_by_arguments(data: SpeedData, levels: Sequence[float]) -> tuple[float, float]:
    """Mean and sigma of the level of a job with these arguments, of those of ended jobs. Sigma: 0 where one of them had
    the same arguments."""
    alike = [level for ended, level in zip(data.similar, levels, strict=True) if ended.arguments == data.arguments]
    if alike:
        return sum(alike) / len(alike), 0.0
    return predicted(
        data.arguments, [(ended.arguments, level) for ended, level in zip(data.similar, levels, strict=True)]
    )


def _converted(ended: EndedJob, data: SpeedData) -> Iterable[SpeedSample]:
    """The measured speeds of an ended job, as they would be with the batch size of this one."""
    usable = [sample for sample in ended.speed_samples if sample.steps_per_second > 0]
    if data.batch == ended.global_batch_size or not data.batch or not ended.global_batch_size:
        return usable
    points = _Points.of(usable, np.ones(len(usable)))
    form = _fit(points, data.mode, ended.global_batch_size).form
    theirs = form.seconds(points.workers, points.servers)
    ours = form._replace(batch=float(data.batch)).seconds(points.workers, points.servers)
    return [
        replace(sample, steps_per_second=sample.steps_per_second * float(ratio))
        for sample, ratio in zip(usable, theirs / ours, strict=True)
    ]


def _fit(points: _Points, mode: Mode, batch: int | None) -> SpeedModel:
    workers, servers, speeds, weights = points
    return SpeedModel.fit(
        workers,
        servers,
        speeds,
        weights=weights,
        mode="sync" if mode is Mode.SYNC else "async",
        global_batch_size=batch,
    )


def _level(own: _Points, others: SpeedModel) -> float:
    """How many times as fast the job is as the others were, by the sizes that it measured; few of them may mislead."""
    ratios = np.log(own.speeds / others.predict(own.workers, own.servers))
    usable = np.isfinite(ratios) & (own.weights > 0)
    if not usable.any():
        return 1.0
    n_sizes = len(set(zip(own.workers[usable].tolist(), own.servers[usable].tolist(), strict=True)))
    mean = float(np.average(ratios[usable], weights=own.weights[usable]))
    doubt = _LEVEL_DOUBT / (1.0 + (mean / _USUAL_LEVEL) ** 2)  # a factor of three is no error of the model
    return float(np.exp(mean * n_sizes / (n_sizes + doubt)))


def _trust(data: SpeedData) -> float:
    if not data.similar:
        return _ANALYSIS_TRUST
    alike = any(e.project == data.project and e.global_batch_size == data.batch for e in data.similar)
    return _OTHERS_TRUST if alike else _STRANGERS_TRUST


def _source(data: SpeedData, n_own: int) -> SpeedSource:
    if n_own:
        return SpeedSource.MEASURED
    return SpeedSource.SIMILAR_JOBS if data.similar else SpeedSource.ANALYSIS
