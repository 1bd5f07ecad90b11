"""How long training stands still when workers and servers come and go: whole processes on loopback.

    python -m benchmarks.membership_change [--rounds 3] [--realtime] [--architecture ps|allreduce]

A job of 25 million parameters with momentum, its coordinator, servers and workers as they are started in production,
and the stand-in for the service that the tests use. The pause is from the last step of the old membership to the
moment at which the first step of the new one may begin, as the coordinator measures it and tells the service; what a
newcomer needs to start does not count, for training goes on meanwhile. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.parameter_server.report import machine
from tests.workers.protocol.conftest import FakeService, Job, server, worker

from optimus_workers.wire.ports import reserve_port

GOAL_SECONDS = 0.5
STEPS_BETWEEN = 3
CHANGES = (
    ("a worker joins", 3, 2),
    ("a server joins", 3, 3),
    ("a worker and a server join", 4, 4),
    ("a worker leaves", 3, 4),
    ("a server leaves", 3, 3),
    ("all but one of each leave", 1, 1),
)
"""Name, workers and servers after it."""
START = (2, 2)
GROUP_CHANGES = (
    ("a worker joins", 3, 0),
    ("another joins", 4, 0),
    ("a worker is killed", 3, 0),
    ("a worker leaves", 2, 0),
    ("all but one leave", 1, 0),
)
GROUP_START = (2, 0)
"""Of an all-reduce job."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Downtime of in-place changes of a job's size.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--realtime", action="store_true", help="run before other work (needs the right)")
    parser.add_argument("--architecture", choices=["ps", "allreduce"], default="ps")
    options = parser.parse_args()
    start, changes = (START, CHANGES) if options.architecture == "ps" else (GROUP_START, GROUP_CHANGES)
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    before = machine()
    found: dict[str, list[float]] = {name: [] for name, _, _ in changes}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, seconds in _one_job(Path(folder), options.architecture, start, changes).items():
                found[name].append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    report = {
        "machine": before | {"load_after": os.getloadavg()},
        "architecture": options.architecture,
        "goal_seconds": GOAL_SECONDS,
        "pause_seconds": {name: [round(each, 3) for each in seconds] for name, seconds in found.items()},
        "median_seconds": {name: round(seconds, 3) for name, seconds in medians.items()},
        "largest_median_seconds": round(max(medians.values()), 3),
    }
    print(json.dumps(report, indent=1))


def _one_job(
    folder: Path, architecture: str, start: tuple[int, int], changes: Sequence[tuple[str, int, int]]
) -> dict[str, float]:
    spec: dict[str, Any] = {
        "task": "large_model:make",
        "task_args": {},
        "working_directory": str(Path(__file__).parent),
        "mode": "sync",
        "architecture": architecture,
        "seed": 1,
        "checkpoint_seconds": 3600.0,
        "convergence": {},
    }
    service = FakeService()
    job = Job(folder, service, spec, reserve_port("127.0.0.1"))
    try:
        job.start_coordinator()
        job.scale(*_names(*start))
        membership = job.wait_for_size(*start)
        pauses = {}
        for name, workers, servers in changes:
            job.wait_for_step(membership["step"] + STEPS_BETWEEN)
            if "killed" in name:
                job.kill(worker(workers))  # a stop of the step at hand included, which is repeated
            else:
                job.scale(*_names(workers, servers))
            membership = job.wait_for_size(workers, servers, after_epoch=membership["epoch"])
            assert membership["lost_steps"] == 0
            pauses[name] = float(membership["pause_seconds"])
        return pauses
    finally:
        job.stop()
        service.close()


def _names(workers: int, servers: int) -> list[str]:
    return [*(worker(rank) for rank in range(workers)), *(server(rank) for rank in range(servers))]


if __name__ == "__main__":
    main()
