"""The traces of PCS: virtual clusters of Philly with 64 GPUs each, to compare predicted completion times.

A row is one job: `submit_time` seconds, `service` GPU-seconds, and `num_jobs`, the most GPUs that it can use. As in the
published simulations, each job may have any number of GPUs up to that, from one on, and tells beforehand how much
service it needs. Their speedup curves of named models are not part of the traces: the exchange that `own.lasting`
assumes stands in.

References: Abdullah Bin Faisal et al., "When will my ML job finish? Toward providing completion time estimates through
predictability-centric scheduling", OSDI 2024.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from optimus_contract.limits import MAX_POSIX_SECONDS, MAX_STEPS, MAX_TASKS
from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.own import serving
from optimus_simulator.traces.rows import Row, opened, reading, rows

GPU = "gpu"
NODES, GPUS_PER_NODE = 8, 8


def read_pcs(path: Path, *, steps_stated: bool = True) -> Trace:
    """The jobs in order of submission, on 64 GPUs. `steps_stated`: a job says how many steps it will take.

    Raises:
        BadTrace: the file is missing or malformed.
    """
    with reading(path, "a trace of PCS"), opened(path, is_packed=True) as text:
        jobs = in_order(_job(row, steps_stated) for row in rows(text))
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Trace(name, equal_nodes(NODES, Resources(gpus={GPU: GPUS_PER_NODE})), jobs)


def _job(row: Row, steps_stated: bool) -> TraceJob:
    service, gpus = int(max(row.number("service", 0, MAX_STEPS), 1.0)), row.whole("num_jobs", 1, MAX_TASKS)
    spec = _spec(min(gpus, NODES * GPUS_PER_NODE), row.text("model_name"), service if steps_stated else None)
    submitted_at = row.number("submit_time", 0, MAX_POSIX_SECONDS)
    return TraceJob(f"pcs-{row.whole('app_id', 0):05d}", submitted_at, spec, serving(float(service)))


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
