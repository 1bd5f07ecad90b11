"""The Philly trace: 82,247 jobs of a Microsoft cluster in autumn 2017, of which only GPUs and durations are known.

What a job would do with another number of GPUs is not: see `own.lasting` for what is assumed. How long it
trains is hidden from the scheduler, as it was in life.

References: Jeon et al., "Analysis of large-scale multi-tenant GPU clusters", ATC 2019.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from optimus_contract.limits import LEAST_SECONDS, MAX_SECONDS
from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.own import lasting
from optimus_simulator.traces.rows import Row, opened, reading, rows

GPU = "p100"
GPUS = 2500
GPUS_PER_NODE = 8


def read_philly(path: Path) -> Trace:
    """The jobs in order of submission, on 2,500 GPUs.

    Raises:
        BadTrace: the file is missing or malformed.
    """
    with reading(path, "the Philly trace"), opened(path, is_packed=True) as text:
        read = map(_read, rows(text))
        found = [
            (submitted, duration, gpus) for submitted, duration, gpus in read if duration >= LEAST_SECONDS and gpus > 0
        ]
        first = min((submitted for submitted, _, _ in found), default=0.0)
        jobs = in_order(_job(number, *each, first) for number, each in enumerate(found))
    full, rest = divmod(GPUS, GPUS_PER_NODE)
    nodes = equal_nodes(full + bool(rest), Resources(gpus={GPU: GPUS_PER_NODE}))
    return Trace("philly", nodes, jobs)


def _read(row: Row) -> tuple[float, float, int]:
    """(submission as a timestamp, duration in seconds, GPUs)."""
    written = row.text("timestamp")
    try:
        submitted = datetime.fromisoformat(written).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"line {row.line}: timestamp is {written:.40}, but must be a date and time") from error
    return submitted, row.number("duration", -MAX_SECONDS, MAX_SECONDS), row.whole("num_gpus", 0, GPUS)


def _job(number: int, submitted: float, duration: float, gpus: int, first: float) -> TraceJob:
    return TraceJob(f"philly-{number:05d}", submitted - first, _spec(gpus), lasting(duration, gpus))


@lru_cache
def _spec(gpus: int) -> JobSpec:
    """Jobs that ask for the same share one value: there are 82,247."""
    return JobSpec(
        worker=TaskDemand(Resources(gpus={GPU: 1}), 1, gpus),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(),
        architecture=Architecture.ALLREDUCE,
        requested_workers=gpus,
        requested_servers=0,
    )
