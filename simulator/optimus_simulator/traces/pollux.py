"""The Pollux workloads: 160 all-reduce jobs in 8 hours on 16 nodes of 4 GPUs, with measured profiles."""

from __future__ import annotations

import csv
from pathlib import Path

from optimus_models.speed.elastic_batch import ElasticBatch
from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.errors import BadTrace
from optimus_simulator.profiles import GPUS_PER_NODE, Application, ProfiledTruth
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.profile_files import load_application

NODES = 16
GPU = "t4"
_WORKER = Resources(gpus={GPU: 1})
_NO_SERVERS = TaskDemand(Resources(), 0, 0)
_ONE_GPU = frozenset({"ncf"})
"""Applications that never ran on more than one GPU in the published simulations: their batch is too small for it."""


def read_pollux(path: Path, *, profiles: Path | None = None, faithful: bool = False, elastic: bool = False) -> Trace:
    """A workload file; `profiles` defaults to the folder of that name beside the workloads' folder. `elastic`: jobs let
    their batch be chosen between the smallest and the largest that was measured.

    Raises:
        BadTrace: a file is missing or malformed.
    """
    folder = profiles or path.parent.parent / "profiles"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        jobs = in_order(_job(row, load_application(folder / row["application"]), faithful, elastic) for row in rows)
    except (OSError, KeyError, ValueError) as error:
        raise BadTrace(f"{path}: not a Pollux workload ({error})") from error
    return Trace(path.stem, equal_nodes(NODES, Resources(gpus={GPU: GPUS_PER_NODE})), jobs)


def _job(row: dict[str, str], application: Application, faithful: bool, elastic: bool) -> TraceJob:
    batch, gpus = int(row["batch_size"]), int(row["num_replicas"])
    limits = _limits(application) if elastic else None
    most = 1 if application.name in _ONE_GPU else (limits.maximum if limits else batch) // application.min_local
    most = min(max(most, 1), NODES * GPUS_PER_NODE)
    spec = JobSpec(
        worker=TaskDemand(_WORKER, 1, max(most, gpus)),
        server=_NO_SERVERS,
        convergence=ConvergenceRule(max_epochs=float(application.max_epochs)),
        architecture=Architecture.ALLREDUCE,
        global_batch_size=batch,
        requested_workers=gpus,
        requested_servers=0,
        family=application.name,
        elastic_batch=limits,
    )
    return TraceJob(
        row["name"],
        float(row["time"]),
        spec,
        ProfiledTruth(application, batch, whole_seconds=faithful, quirks=faithful, elastic=limits is not None),
    )


def _limits(application: Application) -> ElasticBatch | None:
    """None for one that the published simulations give a fixed batch, too."""
    if application.name in _ONE_GPU:
        return None
    return ElasticBatch(application.initial_batch, application.max_batch, application.max_local)
