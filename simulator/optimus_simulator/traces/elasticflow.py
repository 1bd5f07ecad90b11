"""The traces of ElasticFlow: jobs with deadlines, and steps per second measured by global batch and number of GPUs.

A row is one job: `submission_time` seconds, `num_iteration` steps of `model_name` with `batch_size` examples,
`deadline` (seconds on the same clock), and `num_gpu`, what it asked for. The speeds are expected in `throughputs_A100`
(or `throughputs_T4`) beside the traces' folder. Which cluster a trace ran on in the published simulations goes by its
name.

References: Gu et al., "ElasticFlow: an elastic serverless training platform for distributed deep learning", ASPLOS
2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from optimus_contract.job import MAX_BATCH
from optimus_contract.limits import MAX_POSIX_SECONDS, MAX_STEPS, MAX_TASKS
from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.errors import BadTrace
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.rows import Row, opened, reading, rows
from optimus_simulator.truth.truth import ParametricTruth

_MOST_GPUS = 64
"""Of one job, as in the published simulations."""


class _Cluster(NamedTuple):
    gpu: str
    nodes: int
    gpus_per_node: int


_CLUSTERS = {
    "195job": _Cluster("a100", 16, 8),
    "elasticVpollux_e": _Cluster("t4", 16, 4),
    "cluster10": _Cluster("a100", 32, 8),
    "philly_103959": _Cluster("a100", 32, 8),
    **{f"cluster{number:02d}": _Cluster("a100", 64, 8) for number in (1, 2, 3, 5, 6)},
    **{f"cluster{number:02d}": _Cluster("a100", 128, 8) for number in (4, 7, 8, 9)},
}


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Steps per second by number of GPUs: between measured numbers on a straight line, beyond them as at the last."""

    gpus: tuple[int, ...]
    """Rising."""
    speeds: tuple[float, ...]

    def __call__(self, workers: int, _servers: int) -> float:
        return float(np.interp(workers, self.gpus, self.speeds))


def read_elasticflow(path: Path, *, steps_stated: bool = True) -> Trace:
    """The jobs in order of submission, on the cluster of the published simulation. `steps_stated`: a job says how
    many steps it will take.

    Raises:
        BadTrace: the file or a table of speeds is missing or malformed, or its name tells no cluster.
    """
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    if name not in _CLUSTERS:
        raise BadTrace(f"{path}: which cluster it ran on is known for {', '.join(sorted(_CLUSTERS))}")
    cluster = _CLUSTERS[name]
    with reading(path, "a trace of ElasticFlow"), opened(path) as text:
        found = list(rows(text))
        speeds = _folder(path, f"throughputs_{cluster.gpu.upper()}")
        first = min((_submitted(row) for row in found), default=0)
        jobs = in_order(_job(row, number, first, cluster, speeds, steps_stated) for number, row in enumerate(found))
    nodes = equal_nodes(cluster.nodes, Resources(gpus={cluster.gpu: cluster.gpus_per_node}))
    return Trace(name, nodes, jobs)


def _folder(path: Path, name: str) -> Path:
    beside = path.parent / name
    return beside if beside.is_dir() else path.parent.parent / name


def _submitted(row: Row) -> int:
    """The traces call some of their columns by several names."""
    return row.whole("submit_time", 0, MAX_POSIX_SECONDS, "submission_time")


def _job(row: Row, number: int, first: int, cluster: _Cluster, speeds: Path, steps_stated: bool) -> TraceJob:
    batch, asked, model = (
        row.whole("batch_size", 1, MAX_BATCH),
        row.whole("num_gpu", 1, MAX_TASKS),
        row.text("model_name"),
    )
    steps = row.whole("iteration", 1, MAX_STEPS, "num_iteration", "real_iteration")
    law = _measured(speeds / f"{model}.csv", batch, min(_MOST_GPUS, cluster.nodes * cluster.gpus_per_node))
    most = law.gpus[-1]
    spec = JobSpec(
        worker=TaskDemand(Resources(gpus={cluster.gpu: 1}), 1, most),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(max_steps=steps if steps_stated else None),
        architecture=Architecture.ALLREDUCE,
        global_batch_size=batch,
        requested_workers=min(asked, most),
        requested_servers=0,
        family=f"{model}-{batch}",
        deadline_at=float(row.whole("ddl", 0, MAX_POSIX_SECONDS, "deadline") - first),
    )
    return TraceJob(f"ef-{number:05d}", float(_submitted(row) - first), spec, ParametricTruth(float(steps), law))


@lru_cache(maxsize=256)
def _measured(table: Path, batch: int, most: int) -> MeasuredSteps:
    with opened(table) as text:
        by_batch = {row.whole("global_batch_size", 1, MAX_BATCH): row.fields for row in rows(text)}
    if batch not in by_batch:
        raise ValueError(f"{table.name} has no speeds with a batch of {batch}")
    found = [(int(gpus), float(speed or "nan")) for gpus, speed in by_batch[batch].items() if gpus.isdigit()]
    usable = sorted((gpus, speed) for gpus, speed in found if 0 < speed <= MAX_STEPS and 1 <= gpus <= min(most, batch))
    if not usable:
        raise ValueError(f"{table.name} has no speeds with a batch of {batch} on 1 to {min(most, batch)} GPUs")
    return MeasuredSteps(tuple(gpus for gpus, _ in usable), tuple(speed for _, speed in usable))
