"""Which GPU type each job runs on, chosen before anything is forecast: the rest of a round sees jobs of one type.

Where types are chosen by speed, the forecast begins here: a running job is on its present type, and a waiting one on
the type with the highest score, which is the speed that it would have there with its equal part of the type's GPUs,

    score = relative speed on the type · (GPUs of its part / GPUs of a worker) ^ scaling          (by speed)

(a part smaller than the minimum is a part of the time). `market` then chooses with the forecasts. By price, this
is the choice:

    score = relative speed on the type / price of a GPU                                           (by price)

Waiting jobs take the best type in order of arrival. A job that runs keeps its type unless another one is free, is
better by `least_type_gain`, and saves more than the change costs: moving to another type replaces all workers. Either
way, jobs that get nothing while another type is idle go there (`gpu_types.choose`).

How fast each job is on each type, relative to the others: measured where it was, predicted where it was not. What jobs
did with different numbers of workers is first brought to one worker by an assumed scaling, so that only the type is
left to explain. See `optimus_models.gpu_types` for the regression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from optimus_models.gpu_types import MAX_POINTS, GpuTypeModel, JobFeatures, TypeSpeed
from optimus_models.rescale import RescaleCost
from optimus_scheduler.model import Directive, EndedJob, Job, JobSpec, Node, Nodes, SpeedSample
from optimus_scheduler.settings import Settings

MAX_ENDED = 200
"""Measurements of ended jobs that are looked at, the newest: half of what the regression keeps."""


_STEP = 0.05
"""Logarithm by which speeds of ended jobs are scaled, or a multiple of it: half of it is the noise of one speed."""


class RelativeSpeeds:
    """Speeds on one worker by GPU type, asked for one job after the other."""

    def __init__(self, model: GpuTypeModel, measured: frozenset[str], gpu_types: Sequence[str]) -> None:
        """`measured`: names of the jobs that the model knows; `gpu_types`: those that are likely to be asked for."""
        self._model, self._measured, self._gpu_types = model, measured, list(gpu_types)
        self._known: dict[tuple[str, str, float], dict[str, float]] = {}
        self._ended: dict[tuple[int, str], tuple[EndedJob, ...]] = {}
        """By the identity of the samples of the jobs of one round, and the type."""

    def of(self, job: Job) -> Callable[[str], float]:
        """Steps per second of the job on a type, above 0; only the ratio between types means something."""
        return self._of(_features(job))

    def samples_on(self, job: Job, gpu_type: str) -> tuple[SpeedSample, ...]:
        """What the job measured, as it would be on that type."""
        return _on(job.speed_samples, gpu_type, self._factors(job.speed_samples, self.of(job), gpu_type))

    def similar_on(self, job: Job, gpu_type: str) -> tuple[EndedJob, ...]:
        """What ended jobs like it measured, as it would be on that type."""
        if (key := (id(job.similar), gpu_type)) not in self._ended:
            ended = tuple([self._ended_on(one, gpu_type) for one in job.similar])
            is_same = all(a is b for a, b in zip(ended, job.similar, strict=True))
            self._ended[key] = job.similar if is_same else ended
        return self._ended[key]

    def _ended_on(self, one: EndedJob, gpu_type: str) -> EndedJob:
        exact = self._factors(one.speed_samples, self._of(_features_of_ended(one)), gpu_type)
        if not exact:
            return one
        # In steps, so that what is fitted to them changes only when it matters; the id says what was done to them.
        steps = {other: round(np.log(factor) / _STEP) for other, factor in exact.items()}
        factors = tuple([(other, float(np.exp(_STEP * count))) for other, count in sorted(steps.items())])
        samples = _remembered_on(one.speed_samples, gpu_type, factors)
        return replace(one, id=f"{one.id} on {gpu_type} by {sorted(steps.items())}", speed_samples=samples)

    def _factors(self, samples: Sequence[SpeedSample], of: Callable[[str], float], gpu_type: str) -> dict[str, float]:
        """How many times as fast the job is on that type as on each other one that it was measured on."""
        others = {sample.gpu_type for sample in samples} - {None, gpu_type}
        return {other: of(gpu_type) / of(other) for other in others if other is not None}

    def _of(self, features: JobFeatures) -> Callable[[str], float]:
        # Jobs that were never measured differ by nothing but their family and batch.
        name = features.name if features.name in self._measured else ""
        known = self._known.setdefault((name, features.family, features.batch_size), {})

        def speed(gpu_type: str) -> float:
            if gpu_type not in known:
                asked = list(dict.fromkeys([*self._gpu_types, gpu_type]))
                known.update(zip(asked, self._model.predict(features, asked).tolist(), strict=True))
            return known[gpu_type]

        return speed


def relative_speeds(jobs: Sequence[Job], settings: Settings) -> RelativeSpeeds:
    """Fitted to what these jobs, and ended ones like them, measured. Independent of the order of `jobs`."""
    ordered = sorted(jobs, key=lambda job: job.id)
    ended = {one.id: one for job in ordered for one in job.similar}
    rows = list(_rows_of_ended(ended, settings))[-MAX_ENDED:]
    for job in ordered:
        rows += _rows(_features(job), job.speed_samples, settings)
    rows = rows[-MAX_POINTS:]
    types = sorted({row.gpu_type for row in rows} | {gpu_type for job in ordered for gpu_type in job.spec.gpu_types})
    return RelativeSpeeds(GpuTypeModel.fit(rows), frozenset(row.job.name for row in rows), types)


def _rows_of_ended(ended: Mapping[str, EndedJob], settings: Settings) -> Iterator[TypeSpeed]:
    for one in ended.values():
        yield from _rows(_features_of_ended(one), one.speed_samples, settings)


def _rows(features: JobFeatures, samples: Iterable[SpeedSample], settings: Settings) -> Iterator[TypeSpeed]:
    """One row for each type that the job was measured on: the geometric mean, brought to one worker."""
    logs: dict[str, list[float]] = {}
    for sample in samples:
        if sample.gpu_type is not None and sample.steps_per_second > 0:
            speed = sample.steps_per_second * (sample.batch or 1)  # of a batch that varies: examples per second
            alone = np.log(speed) - settings.gpu_scaling * np.log(max(sample.workers, 1))
            logs.setdefault(sample.gpu_type, []).append(float(alone))
    for gpu_type in sorted(logs):
        yield TypeSpeed(features, gpu_type, float(np.exp(np.mean(logs[gpu_type]))))


def _features(job: Job) -> JobFeatures:
    return JobFeatures(job.id, job.spec.family, float(job.spec.global_batch_size or 1))


def _features_of_ended(job: EndedJob) -> JobFeatures:
    return JobFeatures(job.id, job.task, float(job.global_batch_size or 1))


@lru_cache(maxsize=4096)
def _remembered_on(
    samples: tuple[SpeedSample, ...], gpu_type: str, factors: tuple[tuple[str, float], ...]
) -> tuple[SpeedSample, ...]:
    return _on(samples, gpu_type, dict(factors))


def _on(samples: tuple[SpeedSample, ...], gpu_type: str, factors: Mapping[str, float]) -> tuple[SpeedSample, ...]:
    """The samples with speeds of other types times `factors`; all are of that type then."""
    if not factors:
        return samples
    return tuple([replace(_faster(one, factors.get(one.gpu_type or "", 1.0)), gpu_type=gpu_type) for one in samples])


def _faster(sample: SpeedSample, factor: float) -> SpeedSample:
    """Everything in a step so many times as fast."""
    exchange = None if sample.exchange_seconds is None else sample.exchange_seconds / factor
    return replace(sample, steps_per_second=sample.steps_per_second * factor, exchange_seconds=exchange)


ANY_GPU = "gpu"
"""A worker that asks for GPUs of this type takes any that the cluster has, unless the job says which."""


def accepted_types(spec: JobSpec, nodes: Sequence[Node]) -> tuple[str, ...]:
    """GPU types that the job may run on and that a worker fits on here, the preferred first; empty for a CPU job.

    Just the type that it names when there is none: it cannot run, and its decision says so.
    """
    named = spec.gpu_type
    if named is None:
        return ()
    offered = sorted({gpu_type for node in nodes for gpu_type, count in node.capacity.gpus.items() if count > 0})
    wanted = spec.gpu_types or (offered if named == ANY_GPU else (named,))
    hosted = tuple(each for each in wanted if each in offered and _is_hosted(spec, each, nodes))
    return hosted or (named,)


def _is_hosted(spec: JobSpec, gpu_type: str, nodes: Sequence[Node]) -> bool:
    worker = spec.on(gpu_type).worker.resources
    return any(worker.fits_in(node.capacity) for node in nodes if node.schedulable)


def has_a_choice(choices: Mapping[str, Sequence[str]]) -> bool:
    """Whether anybody may run on several types."""
    return any(len(types) > 1 for types in choices.values())


def on_the_only_types(jobs: Sequence[Job], choices: Mapping[str, Sequence[str]]) -> tuple[Job, ...]:
    """Every job on the one type that it may run on."""
    # Most jobs are on it already.
    return tuple(
        [
            job if not (types := choices.get(job.id)) or types[0] == job.spec.gpu_type else _settled(job, types[0])
            for job in jobs
        ]
    )


def on_first_types(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    choices: Mapping[str, Sequence[str]],
    speeds: RelativeSpeeds,
    now: float,
    settings: Settings,
) -> tuple[Job, ...]:
    """The jobs on types that are chosen without a forecast."""
    chosen = choose_types(jobs, choices, gpus_by_type(nodes), speeds, now, settings)
    return tuple(on_type(job, chosen.get(job.id), speeds) for job in jobs)


def on_type(job: Job, gpu_type: str | None, speeds: RelativeSpeeds) -> Job:
    """The job on this type; what it and its like measured on others is scaled by how fast types are for them."""
    typed = _settled(job, gpu_type)
    if gpu_type is None:
        return typed
    samples = speeds.samples_on(job, gpu_type)
    similar = speeds.similar_on(job, gpu_type)
    if samples is job.speed_samples and similar is job.similar:
        return typed
    return replace(typed, speed_samples=samples, similar=similar)


def _settled(job: Job, gpu_type: str | None) -> Job:
    return job if job.spec.on(gpu_type) is job.spec else replace(job, spec=job.spec.on(gpu_type))


def has_left_its_type(job: Job) -> bool:
    """Whether the workers that it has are of another type than its specification names now: they are replaced."""
    gpu_type = job.allocation.gpu_type
    return gpu_type is not None and gpu_type != job.spec.gpu_type


def types_of_each(jobs: Sequence[Job], nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """The types that each GPU job may run on; looked up once for jobs that ask for the same."""
    nodes = Nodes.of(nodes).distinct
    known: dict[object, tuple[str, ...]] = {}
    choices: dict[str, tuple[str, ...]] = {}
    for job in jobs:
        spec, worker = job.spec, job.spec.worker.resources
        if not worker.gpus:
            continue
        key = (spec.gpu_types, worker.cpu, worker.memory_bytes, tuple(worker.gpus.items()))
        if key not in known:
            known[key] = accepted_types(spec, nodes)
        choices[job.id] = known[key]
    return choices


def gpus_by_type(nodes: Sequence[Node]) -> dict[str, int]:
    """What schedulable nodes offer."""
    return dict(Nodes.of(nodes).capacity.gpus)


# --- choosing --------------------------------------------------------------------------------------------------------


def choose_types(
    jobs: Sequence[Job],
    choices: Mapping[str, Sequence[str]],
    gpus: Mapping[str, int],
    speeds: RelativeSpeeds,
    now: float,
    settings: Settings,
) -> dict[str, str]:
    """The GPU type of each job that has a choice of at least one, by job id."""
    market = _Market(gpus, speeds, settings)
    with_gpus = sorted((job for job in jobs if choices.get(job.id)), key=lambda job: (job.submitted_at, job.id))
    chosen: dict[str, str] = {}
    running = [job for job in with_gpus if job.allocation.gpu_type in choices[job.id]]
    for job in running:
        chosen[job.id] = job.allocation.gpu_type or ""
        market.join(job, chosen[job.id])
    for job in with_gpus:
        if job.id not in chosen:
            chosen[job.id] = market.best(job, choices[job.id])
            market.join(job, chosen[job.id])
    for job in running if settings.gpu_type_by == "price" else ():
        if len(choices[job.id]) > 1 and may_move(job, now, settings):
            chosen[job.id] = market.moved(job, chosen[job.id], choices[job.id], now)
    return chosen


def may_move(job: Job, now: float, settings: Settings) -> bool:
    """Whether the job has trained on its type for a while and is to go on."""
    began = (job.allocated_at, job.started_at)
    since = max((at for at in began if at is not None), default=now)
    return job.directive is Directive.RUN and now - since >= settings.measuring_seconds


class _Market:
    """The jobs on each type so far."""

    def __init__(self, gpus: Mapping[str, int], speeds: RelativeSpeeds, settings: Settings) -> None:
        self._gpus, self._speeds, self._settings = gpus, speeds, settings
        self._weights = dict.fromkeys(gpus, 0.0)
        self._minima = dict.fromkeys(gpus, 0)

    def join(self, job: Job, gpu_type: str, sign: int = 1) -> None:
        if gpu_type in self._gpus:
            self._weights[gpu_type] += sign * job.spec.priority
            self._minima[gpu_type] += sign * job.spec.worker.minimum * gpus_of_a_worker(job)

    def best(self, job: Job, types: Sequence[str]) -> str:
        """The type with the highest score for a job that is on none; the earlier of equals."""
        return max(types, key=lambda gpu_type: self._score(job, gpu_type))

    def moved(self, job: Job, present: str, types: Sequence[str], now: float) -> str:
        """The type that the job goes on with; the change is counted."""
        self.join(job, present, sign=-1)
        best = self.best(job, [gpu_type for gpu_type in types if gpu_type == present or self._can_host(job, gpu_type)])
        stays = not self._pays(job, self._score(job, best) - self._score(job, present), now)
        self.join(job, present if stays else best)
        return present if stays else best

    def _pays(self, job: Job, log_ratio: float, now: float) -> bool:
        """Whether the move saves more than it costs; the job is expected to train as long again as it has."""
        trained = now - job.started_at if job.started_at is not None else 0.0
        seconds = max(trained, 0.0)
        stop = RescaleCost.fit(job.rescale_seconds).predict() * self._settings.rescale_margin
        return log_ratio >= math.log1p(self._settings.least_type_gain) and log_ratio * seconds > stop

    def _score(self, job: Job, gpu_type: str) -> float:
        """The logarithm of the score."""
        speed = math.log(self._speeds.of(job)(gpu_type))
        prices = self._settings.price_per_gpu_hour
        if self._settings.gpu_type_by == "price" and prices.get(gpu_type, 0.0) > 0:
            return speed - math.log(prices[gpu_type])
        parts = self._part(job, gpu_type) / gpus_of_a_worker(job)
        return speed + self._settings.gpu_scaling * math.log(max(parts, 1e-6))

    def _can_host(self, job: Job, gpu_type: str) -> bool:
        need = job.spec.worker.minimum * gpus_of_a_worker(job)
        return self._minima.get(gpu_type, 0) + need <= self._gpus.get(gpu_type, 0)

    def _part(self, job: Job, gpu_type: str) -> float:
        """GPUs that the job would have, were each type shared in proportion to priority."""
        weight, each = job.spec.priority, gpus_of_a_worker(job)
        part = self._gpus.get(gpu_type, 0) * weight / (self._weights.get(gpu_type, 0.0) + weight)
        return min(part, job.spec.worker.maximum * each)  # below the minimum it is a part of the time


def gpus_of_a_worker(job: Job) -> int:
    return max(sum(job.spec.worker.resources.gpus.values()), 1)
