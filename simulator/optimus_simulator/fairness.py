"""Finish-time fairness: what a job would have needed on its own part of the cluster.

ρ = T_shared / T_alone, T_alone on 1/N of the cluster, where N is the mean number of active jobs during the job's life.
Above 1: sharing made it later than it had a right to be.

References: Mahajan et al., "Themis", NSDI 2020, section 3; Qiao et al., "Pollux", OSDI 2021, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimus_scheduler.model import JobSpec, Resources
from optimus_simulator.outcome import mean_active
from optimus_simulator.trace import TraceJob


def finish_time_fairness(
    jobs: Sequence[TraceJob], finished: Sequence[float], capacity: Resources, start_seconds: float
) -> list[float]:
    """ρ of each job; `start_seconds` is what starting takes, alone as well."""
    n_active = mean_active([job.submitted_at for job in jobs], finished)
    alone = [
        start_seconds + _alone_seconds(job, capacity, active)
        for job, active in zip(jobs, n_active.tolist(), strict=True)
    ]
    shared = [end - job.submitted_at for job, end in zip(jobs, finished, strict=True)]
    return [together / max(by_itself, 1e-9) for together, by_itself in zip(shared, alone, strict=True)]


def _alone_seconds(job: TraceJob, capacity: Resources, n_active: float) -> float:
    """On its part of the cluster, with the GPU type that suits it best there."""
    kinds = job.gpu_types_of(capacity)
    return min(_seconds_on(job, kind, capacity, n_active) / job.speed_factor(kind) for kind in kinds)


def _seconds_on(job: TraceJob, gpu_type: str | None, capacity: Resources, n_active: float) -> float:
    """On a part of the cluster in which workers come with as many servers as they have on average at the minimum."""
    spec = job.spec.on(gpu_type)
    servers_each = spec.server.minimum / max(spec.worker.minimum, 1)
    fair = 1.0 / _bundle_share(spec, capacity, servers_each) / n_active  # workers, not whole
    workers = int(min(max(math.floor(fair), spec.worker.minimum), spec.worker.maximum))
    servers = min(max(round(workers * servers_each), spec.server.minimum), spec.server.maximum)
    seconds = job.truth.begin().seconds_left(job.truth.fastest(workers, servers))
    # With less than the minimum as its part, a job would have that minimum only for a part of the time.
    return seconds * max(1.0, spec.worker.minimum / fair)


def _bundle_share(spec: JobSpec, capacity: Resources, servers_each: float) -> float:
    worker = spec.worker.resources.dominant_share(capacity)
    server = spec.server.resources.dominant_share(capacity)
    return max(worker + server * servers_each, 1e-12)
