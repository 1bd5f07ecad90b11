"""The traces of PCS: virtual clusters of Philly with 64 GPUs each, to compare predicted completion times.

A row is one job: `submit_time` seconds, `service` GPU-seconds, and `num_jobs`, the most GPUs that it can use. As in the
published simulations, each job may have any number of GPUs up to that, from one on, and tells beforehand how much
service it needs. Their speedup curves of named models are not part of the traces: the exchange that `own.lasting`
assumes stands in.

References: Abdullah Bin Faisal et al., "When will my ML job finish? Toward providing completion time estimates through
predictability-centric scheduling", OSDI 2024.
"""

from __future__ import annotations

import csv
import gzip
from functools import lru_cache
from pathlib import Path

from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.errors import BadTrace
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.own import serving

GPU = "gpu"
NODES, GPUS_PER_NODE = 8, 8


def read_pcs(path: Path, *, steps_stated: bool = True) -> Trace:
    """The jobs in order of submission, on 64 GPUs. `steps_stated`: a job says how many steps it will take.

    Raises:
        BadTrace: the file is missing or malformed.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
            jobs = in_order(_job(row, steps_stated) for row in csv.DictReader(text))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"{path}: not a trace of PCS ({error})") from error
    if not jobs:
        raise BadTrace(f"{path}: it has no jobs")
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Trace(name, equal_nodes(NODES, Resources(gpus={GPU: GPUS_PER_NODE})), jobs)


def _job(row: dict[str, str], steps_stated: bool) -> TraceJob:
    service, gpus = max(float(row["service"]), 1.0), int(row["num_jobs"])
    if gpus < 1:
        raise ValueError(f"num_jobs is {gpus} in the row of app_id {row['app_id']}, but must be 1 or more")
    most = min(gpus, NODES * GPUS_PER_NODE)
    spec = _spec(most, row["model_name"], int(service) if steps_stated else None)
    return TraceJob(f"pcs-{int(row['app_id']):05d}", float(row["submit_time"]), spec, serving(float(int(service))))


@lru_cache(maxsize=4096)
def _spec(gpus: int, model: str, steps: int | None) -> JobSpec:
    return JobSpec(
        worker=TaskDemand(Resources(gpus={GPU: 1}), 1, gpus),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(max_steps=steps),
        architecture=Architecture.ALLREDUCE,
        requested_workers=gpus,
        requested_servers=0,
        family=model,
    )
