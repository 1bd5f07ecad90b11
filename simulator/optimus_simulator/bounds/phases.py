"""How long each part of a job takes at each size, at the very least: its true speeds, placed as well as can be.

A job is a chain of phases, each with its own speed at each size: the epochs of a measured application, whose gradients
become noisier; one phase for a job of constant speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model import JobSpec, Node
from optimus_simulator.elastic import ElasticTruth
from optimus_simulator.errors import BadTrace
from optimus_simulator.profiles import ProfiledTruth
from optimus_simulator.truth import ParameterServerLaw, ParametricTruth, PlacedTruth, Truth

FloatArray = NDArray[np.float64]
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
        return _of_profile(truth, spec, sizes, nodes)
    if isinstance(truth, ElasticTruth):
        return _of_elastic(truth, spec, sizes, nodes)
    if isinstance(truth, ParametricTruth):
        speeds = np.array([_speed(truth, spec, size, nodes) for size in sizes])
        return np.array([_divided(truth.total_steps, speeds)])
    raise BadTrace(f"there is no bound for jobs of the kind {type(truth).__name__}")


def _divided(work: float, speeds: FloatArray) -> FloatArray:
    return np.asarray(np.divide(work, speeds, out=np.full(len(speeds), math.inf), where=speeds > 0))


def _speed(truth: ParametricTruth, spec: JobSpec, size: tuple[int, int], nodes: Sequence[Node]) -> float:
    """Steps per second, with as little crossing of nodes as the nodes allow."""
    workers, servers = size
    if isinstance(truth, PlacedTruth) and isinstance(truth.law, ParameterServerLaw):
        return truth.law.placed(workers, servers, _least_transfer(spec, workers, servers, nodes))
    fits = fits_one_node(spec, workers, servers, nodes)
    return truth.law(workers, servers) * (1.0 if fits else truth.crossing_factor)


def fits_one_node(spec: JobSpec, workers: int, servers: int, nodes: Sequence[Node]) -> bool:
    """Whether that many tasks have room on an empty node."""
    need = spec.worker.resources * workers + spec.server.resources * servers
    return any(need.fits_in(capacity) for capacity in {id(node.capacity): node.capacity for node in nodes}.values())


def _least_transfer(spec: JobSpec, workers: int, servers: int, nodes: Sequence[Node]) -> float:
    """The least cost of a placement (`network_cost.transfer_cost`) where a node has room for m tasks.

    The tasks need at least k = ⌈(w+p)/m⌉ nodes, so one of them has at most w/k workers. It sends what the other w - w/k
    workers want of its servers, or has no server and then fetches everything; likewise for servers.
    """
    if fits_one_node(spec, workers, servers, nodes) or not servers:
        return 0.0
    most = max(_most_tasks(spec, node) for node in nodes)
    count = math.ceil((workers + servers) / max(most, 1))
    few_workers = min(1.0, (workers - workers // count) / servers)
    few_servers = min(workers / servers, (servers - servers // count) / servers)
    return max(few_workers, few_servers)


def _most_tasks(spec: JobSpec, node: Node) -> int:
    """Tasks of the smaller kind that have room on the node."""
    return max(_most(demand.resources.dominant_share(node.capacity)) for demand in (spec.worker, spec.server))


def _most(share: float) -> int:
    return int(1.0 / share + 1e-9) if share > 0 else 0


def _of_elastic(truth: ElasticTruth, spec: JobSpec, sizes: Sizes, nodes: Sequence[Node]) -> FloatArray:
    """The gain of a batch grows with the noise, so each part is as fast as the better of its two ends."""
    smallest = truth.limits.minimum
    ends = np.linspace(0.0, truth.total_steps, _PARTS + 1)
    noise = np.array([truth.noise_at(step) for step in ends])
    rates = np.zeros((_PARTS + 1, len(sizes)))
    for column, (workers, servers) in enumerate(sizes):
        shape = ((workers, servers),) if fits_one_node(spec, workers, servers, nodes) else ((workers - 1, 0), (1, 0))
        for batch in {*truth.limits.choices(workers), truth.batch}:
            examples = truth.in_effect(workers, batch)
            gain = (1.0 + noise / smallest) / (1.0 + noise / examples)
            rates[:, column] = np.maximum(rates[:, column], gain / truth.step_parts(shape, batch)[0])
    return np.asarray(truth.total_steps / _PARTS / np.maximum(rates[:-1], rates[1:]))


def _of_profile(truth: ProfiledTruth, spec: JobSpec, sizes: Sizes, nodes: Sequence[Node]) -> FloatArray:
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
            step = application.fastest_step_seconds(workers, batch, len(nodes))
            seconds[:, column] = np.minimum(seconds[:, column], parts * step / application.gains(batch.effective))
    return seconds
