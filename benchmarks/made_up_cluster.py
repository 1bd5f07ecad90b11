"""A made-up cluster and jobs for it, of any size: what `decide` decides about.

Nodes like the paper's testbed: of 13, 7 with 16 cores and 80 GiB, 6 with 8 cores, 2 GPUs and 48 GiB; 40 in a rack. Jobs
of three kinds: parameter servers on CPUs (half of them, sync or async), GPU workers with CPU servers (a quarter), and
all-reduce on GPUs (a quarter). Each may grow to 12 to 48 workers. What they ask for, and how their speed depends on
their size, is drawn from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from optimus_models.speed.goodput import StepTimes
from optimus_scheduler.forecast.fits import Fits, Fitted
from optimus_scheduler.forecast.speed_fits import SpeedData
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    Job,
    JobSpec,
    JobState,
    Mode,
    Node,
    Resources,
    SpeedSample,
    TaskDemand,
)

NOW = 100_000.0
GPU = "gtx-1080-ti"
RACK_LABEL = "topology.kubernetes.io/rack"
_GIB = 2**30
_NODES_PER_RACK = 40
_KINDS = 240
"""Different jobs; further ones repeat them, with speeds of their own."""
_MEASURED = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8))
"""Sizes at which each job's speed is known."""


def made_up_nodes(count: int) -> tuple[Node, ...]:
    """Racks of 40."""
    plain, with_gpus = Resources(16.0, 80 * _GIB), Resources(8.0, 48 * _GIB, {GPU: 2})
    return tuple(
        Node(
            f"node-{number:05d}",
            plain if number % 13 < 7 else with_gpus,
            labels={RACK_LABEL: f"rack-{number // _NODES_PER_RACK:04d}"},
        )
        for number in range(count)
    )


def made_up_jobs(count: int, first: int = 0) -> tuple[Job, ...]:
    """Queued jobs whose speed is known from earlier runs; job number `first` comes first."""
    return tuple(_job(number) for number in range(first, first + count))


class OwnSpeeds(Fits):
    """Fits that share no speeds between jobs, though many of the jobs here are alike."""

    def _fitted(
        self, jobs: Sequence[Job], measured: Sequence[SpeedData], step_times: Mapping[SpeedData, StepTimes]
    ) -> list[Fitted]:
        found = super()._fitted(jobs, measured, step_times)
        return [each._replace(speeds=Speeds(each.speeds.model)) for each in found]


def _job(number: int) -> Job:
    spec, samples, steps = _kind(number % _KINDS)
    return Job(
        id=f"job-{number:05d}",
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=NOW - 600.0 - number % 997,
        steps_per_epoch=100.0,
        speed_samples=samples,
        step=steps // 10,
    )


@lru_cache(maxsize=_KINDS)
def _kind(number: int) -> tuple[JobSpec, tuple[SpeedSample, ...], int]:
    random = np.random.default_rng((7, number))
    worker, server, allreduce = _demands(number, random)
    mode = Mode.ASYNC if number % 4 == 0 else Mode.SYNC
    most, steps = int(random.integers(12, 49)), int(random.integers(2_000, 200_000))
    spec = JobSpec(
        worker=TaskDemand(worker, 1, most),
        server=TaskDemand(server, 0, 0) if allreduce else TaskDemand(server, 1, most),
        convergence=ConvergenceRule(max_steps=steps),
        mode=mode,
        architecture=Architecture.ALLREDUCE if allreduce else Architecture.PS,
        global_batch_size=128,
    )
    compute, fixed, transfer = (float(low * 4.0 ** random.random()) for low in (2.0, 0.01, 0.02))
    return spec, tuple(_samples(mode, allreduce, compute, fixed, transfer)), steps


def _demands(number: int, random: np.random.Generator) -> tuple[Resources, Resources, bool]:
    """What a worker and a server ask for, and whether there are servers at all."""
    cores, gib = float(random.choice([1.0, 2.0, 3.0])), int(random.choice([4, 8, 10]))
    server = Resources(float(random.choice([1.0, 2.0])), int(random.choice([4, 6])) * _GIB)
    match number % 4:
        case 0 | 1:
            return Resources(cores, gib * _GIB), server, False
        case 2:
            return Resources(min(cores, 2.0), gib * _GIB, {GPU: 1}), server, False
        case _:
            return Resources(min(cores, 2.0), gib * _GIB, {GPU: 1}), Resources(), True


def _samples(mode: Mode, allreduce: bool, compute: float, fixed: float, transfer: float) -> list[SpeedSample]:
    sizes = [(w, 0) for w in (1, 2, 4, 8)] if allreduce else _MEASURED
    return [SpeedSample(w, p, _speed(mode, w, p, compute, fixed, transfer), 100, NOW) for w, p in sizes]


def _speed(mode: Mode, w: int, p: int, compute: float, fixed: float, transfer: float) -> float:
    """Eqs. 3 and 4 of the paper."""
    exchange = transfer * w / max(p, 1) + 0.001 * (w + p)
    return w / (compute + exchange) if mode is Mode.ASYNC else 1.0 / (compute / w + fixed + exchange)
