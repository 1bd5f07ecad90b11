"""The Philly trace: 82,247 jobs of a Microsoft cluster in autumn 2017, of which only GPUs and durations are known.

What a job would do with another number of GPUs is not: see `own.lasting` for what is assumed. How long it
trains is hidden from the scheduler, as it was in life.

References: Jeon et al., "Analysis of large-scale multi-tenant GPU clusters", ATC 2019.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.errors import BadTrace
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.own import lasting

GPU = "p100"
GPUS = 2500
GPUS_PER_NODE = 8


def read_philly(path: Path) -> Trace:
    """The jobs in order of submission, on 2,500 GPUs.

    Raises:
        BadTrace: the file is missing or malformed.
    """
    try:
        rows = list(_rows(path))
        first = min(submitted for submitted, _, _ in rows)
        jobs = in_order(_job(number, *row, first) for number, row in enumerate(rows))
    except (OSError, KeyError, ValueError) as error:
        raise BadTrace(f"{path}: not the Philly trace ({error})") from error
    full, rest = divmod(GPUS, GPUS_PER_NODE)
    nodes = equal_nodes(full + bool(rest), Resources(gpus={GPU: GPUS_PER_NODE}))
    return Trace("philly", nodes, jobs)


def _rows(path: Path) -> Iterator[tuple[float, float, int]]:
    """(submission as a timestamp, duration in seconds, GPUs)."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        for row in csv.DictReader(text):
            submitted = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp()
            duration, gpus = float(row["duration"]), int(row["num_gpus"])
            if duration > 0 and gpus > 0:
                yield submitted, duration, gpus


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
