"""What a job needs at the very least, in parts of the cluster: the input of every bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model import JobSpec, Node, Resources
from optimus_simulator.errors import BadTrace
from optimus_simulator.trace import Trace, TraceJob
from optimus_simulator.truth.elastic import ElasticTruth
from optimus_simulator.truth.profiles import ProfiledTruth
from optimus_simulator.truth.truth import ParameterServerLaw, ParametricTruth, PlacedTruth, Truth

FloatArray = NDArray[np.float64]

# --- how long each part of a job takes at each size, at the very least -----------------------------------------------
# Its true speeds, placed as well as can be. A job is a chain of phases, each with its own speed at each size: the
# epochs of a measured application, whose gradients become noisier; one phase for a job of constant speed.

Sizes = Sequence[tuple[int, int]]
"""(workers, servers)"""

_PARTS = 24
"""Phases that the growing noise of an `ElasticTruth` is cut into."""


def least_seconds(truth: Truth, spec: JobSpec, sizes: Sizes, nodes: Sequence[Node]) -> FloatArray:
    """(phases, sizes) seconds; infinite where a job makes no progress.

    Raises:
        BadTrace: the job ends by other rules than its speed.
    """
    if isinstance(truth, ProfiledTruth):
        return _of_profile(truth, spec, sizes, len(nodes))
    rooms = list({id(node.capacity): node.capacity for node in nodes}.values())
    if isinstance(truth, ElasticTruth):
        return _of_elastic(truth, spec, sizes, rooms)
    if isinstance(truth, ParametricTruth):
        speeds = np.array([_speed(truth, spec, size, rooms) for size in sizes])
        return np.array([_divided(truth.total_steps, speeds)])
    raise BadTrace(f"there is no bound for jobs of the kind {type(truth).__name__}")


def _divided(work: float, speeds: FloatArray) -> FloatArray:
    return np.asarray(np.divide(work, speeds, out=np.full(len(speeds), math.inf), where=speeds > 0))


Rooms = Sequence[Resources]
"""What a node offers, of each kind of node."""


def _speed(truth: ParametricTruth, spec: JobSpec, size: tuple[int, int], rooms: Rooms) -> float:
    """Steps per second, with as little crossing of nodes as the nodes allow."""
    workers, servers = size
    if isinstance(truth, PlacedTruth) and isinstance(truth.law, ParameterServerLaw):
        return truth.law.placed(workers, servers, _least_transfer(spec, workers, servers, rooms))
    fits = fits_one_node(spec, workers, servers, rooms)
    return truth.law(workers, servers) * (1.0 if fits else truth.crossing_factor)


def fits_one_node(spec: JobSpec, workers: int, servers: int, rooms: Rooms) -> bool:
    """Whether that many tasks have room on an empty node."""
    need = spec.demand(workers, servers)
    return any(need.fits_in(room) for room in rooms)


def _least_transfer(spec: JobSpec, workers: int, servers: int, rooms: Rooms) -> float:
    """The least cost of a placement (`network_cost.transfer_cost`) where a node has room for m tasks.

    The tasks need at least k = ⌈(w+p)/m⌉ nodes, so one of them has at most w/k workers. It sends what the other w - w/k
    workers want of its servers, or has no server and then fetches everything; likewise for servers.
    """
    if fits_one_node(spec, workers, servers, rooms) or not servers:
        return 0.0
    most = max(_most_tasks(spec, room) for room in rooms)
    count = math.ceil((workers + servers) / max(most, 1))
    few_workers = min(1.0, (workers - workers // count) / servers)
    few_servers = min(workers / servers, (servers - servers // count) / servers)
    return max(few_workers, few_servers)


def _most_tasks(spec: JobSpec, room: Resources) -> int:
    """Tasks of the smaller kind that have room on the node."""
    return max(_most(demand.resources.dominant_share(room)) for demand in (spec.worker, spec.server))


def _most(share: float) -> int:
    return int(1.0 / share + 1e-9) if share > 0 else 0


def _of_elastic(truth: ElasticTruth, spec: JobSpec, sizes: Sizes, rooms: Rooms) -> FloatArray:
    """The gain of a batch grows with the noise, so each part is as fast as the better of its two ends."""
    smallest = truth.limits.minimum
    ends = np.linspace(0.0, truth.total_steps, _PARTS + 1)
    noise = np.array([truth.noise_at(step) for step in ends])
    rates = np.zeros((_PARTS + 1, len(sizes)))
    for column, (workers, servers) in enumerate(sizes):
        shape = ((workers, servers),) if fits_one_node(spec, workers, servers, rooms) else ((workers - 1, 0), (1, 0))
        for batch in {*truth.limits.choices(workers), truth.batch}:
            examples = truth.in_effect(workers, batch)
            gain = (1.0 + noise / smallest) / (1.0 + noise / examples)
            rates[:, column] = np.maximum(rates[:, column], gain / truth.step_parts(shape, batch)[0])
    return np.asarray(truth.total_steps / _PARTS / np.maximum(rates[:-1], rates[1:]))


def _of_profile(truth: ProfiledTruth, spec: JobSpec, sizes: Sizes, n_nodes: int) -> FloatArray:
    """Every epoch at its own speed, with the best of the batches that may be chosen."""
    if truth.whole_seconds:
        raise BadTrace(
            "epochs of whole seconds (--like-pollux) may take less than they need: there is no bound for them"
        )
    application, limits = truth.application, spec.elastic_batch
    parts = np.diff(application.epoch_progress, prepend=0.0)
    seconds = np.full((len(parts), len(sizes)), math.inf)
    for column, (workers, _) in enumerate(sizes):
        for target in {*(limits.choices(workers) if limits else ()), truth.target_batch}:
            batch = application.cut(target, workers)
            step = application.fastest_step_seconds(workers, batch, n_nodes)
            seconds[:, column] = np.minimum(seconds[:, column], parts * step / application.gains(batch.effective))
    return seconds


# --- what a job takes of the cluster ---------------------------------------------------------------------------------

_AT_ONCE = 1e12
"""Jobs per second, of one that has nothing to do."""


@dataclass(frozen=True, slots=True)
class Work:
    """What jobs that are alike take, by size. Sizes of all GPU types are in one list."""

    usage: FloatArray
    """(sizes, resources) parts of the cluster that are held."""
    seconds: FloatArray
    """(phases, sizes) of each phase."""

    @property
    def shortest(self) -> float:
        """Seconds of training with the best size in each phase."""
        return float(self.seconds.min(axis=1).sum())

    def least_area(self, weights: FloatArray) -> float:
        """The least of weights · usage · seconds that the whole job takes: (resources,) weights."""
        with np.errstate(invalid="ignore"):
            area = self.seconds * (self.usage @ weights)
        return float(np.nanmin(area, axis=1).sum())

    def speeds(self) -> FloatArray:
        """(sizes,) of the job per second, no less than the true speed of any phase when a phase counts as its part of
        the job's seconds at one size: the size that leaves the least between these speeds and the true mean ones.
        """
        finite = np.flatnonzero(np.isfinite(self.seconds).all(axis=0))
        totals = self.seconds[:, finite].sum(axis=0)
        found = [(self.seconds[:, n] / total) if total > 0 else None for n, total in zip(finite, totals, strict=True)]
        candidates = [_fastest(parts, self.seconds) for parts in found if parts is not None]
        if not candidates:
            return np.full(self.seconds.shape[1], _AT_ONCE)
        return min(candidates, key=lambda speeds: float(np.log(speeds[finite] * totals).sum()))


def _fastest(parts: FloatArray, seconds: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        speeds = np.where(parts[:, None] > 0, parts[:, None] / seconds, 0.0)
    return np.asarray(speeds.max(axis=0))


@dataclass(frozen=True, slots=True)
class Need:
    """One job."""

    submitted_at: float
    trains_from: float
    """It cannot make progress before: its first start stops it for a while."""
    deadline_at: float | None
    work: Work


def needs_of(trace: Trace, stop_seconds: float, most_sizes: float = math.inf) -> list[Need]:
    """Of every job of the trace, in its order. `stop_seconds`: how long a start takes, at the very least. `most_sizes`:
    so many are looked at, of jobs that are alike once; each takes some ten microseconds.

    Raises:
        BadTrace: a job has no size that the cluster has room for, or there is no bound for its kind.
        TooManySizes: there are more.
    """
    works, needs = _Works(trace, most_sizes), []
    for job in trace.jobs:
        begin = job.submitted_at + stop_seconds
        needs.append(Need(job.submitted_at, begin, job.spec.deadline_at, works.of(job)))
    return needs


class TooManySizes(BadTrace):
    """Jobs may have so many sizes that looking at all of them takes long."""


class _Works:
    """Remembered for jobs that are alike."""

    def __init__(self, trace: Trace, most_sizes: float) -> None:
        self._nodes, self._capacity = trace.nodes, trace.capacity
        self._known: dict[object, Work] = {}
        self._left = most_sizes

    def of(self, job: TraceJob) -> Work:
        key = _kind(job, self._capacity)
        if key not in self._known:
            self._left -= _count(job, self._capacity)
            if self._left < 0:
                raise TooManySizes("its jobs may have too many sizes to look at all of them in a moment")
            self._known[key] = _work_of(job, self._nodes, self._capacity)
        return self._known[key]


def _kind(job: TraceJob, capacity: Resources) -> object:
    """The same of jobs that take the same: those of one application, or of one law, with the same sizes."""
    truth = job.truth
    nature = getattr(truth, "application", None)
    alike = (nature.name, getattr(truth, "target_batch", 0)) if nature is not None else truth
    spec = job.spec
    sizes = (spec.worker, spec.server, spec.elastic_batch, tuple(sorted(job.type_speeds.items())))
    return (alike, repr(sizes), job.gpu_types_of(capacity))


def _count(job: TraceJob, capacity: Resources) -> int:
    """Sizes that are looked at of it, or a few more."""
    return sum(_pairs(job.spec.on(gpu_type), capacity) for gpu_type in job.gpu_types_of(capacity))


def _pairs(spec: JobSpec, capacity: Resources) -> int:
    shares = [(demand, demand.resources.dominant_share(capacity)) for demand in (spec.worker, spec.server)]
    most = [min(demand.maximum, _most(share)) if share > 0 else demand.maximum for demand, share in shares]
    return math.prod(max(end - demand.minimum + 1, 0) for end, (demand, _) in zip(most, shares, strict=True))


def _work_of(job: TraceJob, nodes: Sequence[Node], capacity: Resources) -> Work:
    names = [name for name, amount in _amounts(capacity).items() if amount > 0]
    usage, seconds = [], []
    for gpu_type in job.gpu_types_of(capacity):
        spec = job.spec.on(gpu_type)
        sizes = _sizes(spec, capacity)
        if sizes:
            usage.append(np.array([_usage(spec, size, capacity, names) for size in sizes]))
            seconds.append(least_seconds(job.truth, spec, sizes, nodes) / job.speed_factor(gpu_type))
    if not usage:
        raise BadTrace(f"job {job.id}: the cluster has no room for its smallest size")
    taken = np.concatenate(usage)
    if not taken.any(axis=1).all():
        raise BadTrace(f"job {job.id}: its tasks take nothing of the cluster, so that there is no bound for it")
    return _fewest(taken, np.concatenate(seconds, axis=1))


def _sizes(spec: JobSpec, capacity: Resources) -> Sizes:
    workers = range(max(spec.worker.minimum, 1), spec.worker.maximum + 1)
    servers = range(spec.server.minimum, spec.server.maximum + 1)
    fitting = [w for w in workers if (spec.worker.resources * w).fits_in(capacity)]
    return [(w, p) for w in fitting for p in servers if spec.demand(w, p).fits_in(capacity)]


def _amounts(resources: Resources) -> dict[str, float]:
    return {"cpu": resources.cpu, "memory": float(resources.memory_bytes), **resources.gpus}


def _usage(spec: JobSpec, size: tuple[int, int], capacity: Resources, names: Sequence[str]) -> list[float]:
    whole = _amounts(capacity)
    taken = _amounts(spec.demand(*size))
    return [taken.get(name, 0.0) / whole[name] for name in names]


def _fewest(usage: FloatArray, seconds: FloatArray) -> Work:
    """Sizes that hold the same count as one that is as fast as the fastest of them in each phase."""
    unique, group = np.unique(np.round(usage, 12), axis=0, return_inverse=True)
    fastest = np.full((len(seconds), len(unique)), math.inf)
    for column, where in enumerate(group.reshape(-1)):
        fastest[:, where] = np.minimum(fastest[:, where], seconds[:, column])
    return Work(unique, fastest)
