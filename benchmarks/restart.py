"""The first round of a service that was just started, with many active jobs and a long history of samples.

    python -m benchmarks.restart [--jobs 10000] [--running 2000] [--samples 500] [--late 50] [--database URL]

The jobs have 10 tasks each, on a cluster that starts nothing and has room for `--running` of them. Each of these posts
`--samples`; a round sees them, and keeps what is known. Each posts `--late` more, and the service is gone. Measured is
the first round of the next one, with nothing in memory; then that of one for which nothing was kept. One JSON object is
printed: seconds, CPU seconds, and the parts of the round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.round_statements import LEASE_SECONDS, a_sample, form_memberships, make_rounds
from sqlalchemy import Engine, func, select, text

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import SampleColumns
from optimus_scheduler.model import Node, Resources
from optimus_service.clusters.fake import FakeCluster
from optimus_service.requests import checked
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.database.tables import JobHistoryRow
from optimus_service.store.records import NewJob, PostedSamples
from optimus_service.store.repository import LEADER_LEASE, Repository

WORKERS, SERVERS = 7, 2
"""Of each job; with its coordinator 10 tasks."""
POST_SAMPLES = 100
POSTS_AT_ONCE, JOBS_AT_ONCE = 50, 1000


def submit(repository: Repository, n_jobs: int, first: int = 0, at: float | None = None) -> None:
    """Jobs of one size, numbered from `first` on, `at` this moment (POSIX seconds; None: now)."""
    at = time.time() if at is None else at
    sizes = {"workers": {"min": WORKERS, "max": WORKERS}, "servers": {"min": SERVERS, "max": SERVERS}}
    spec = write(checked(JobSpec, {"name": "job", "task": "m:f", **sizes}))
    job_ids = [f"job-{number:05d}" for number in range(first, first + n_jobs)]
    new = [NewJob(job_id, {**spec, "name": job_id}, "nonce", None, "hash") for job_id in job_ids]
    for begin in range(0, n_jobs, JOBS_AT_ONCE):
        repository.jobs.create_many(new[begin : begin + JOBS_AT_ONCE], at)


def post(repository: Repository, job_ids: list[str], first: int, n_samples: int) -> None:
    """So many samples of each job, from its `first` on."""
    at = time.time()
    for begin in range(first, first + n_samples, POST_SAMPLES):
        numbers = range(begin, min(begin + POST_SAMPLES, first + n_samples))
        columns = SampleColumns.of([a_sample(number, at) for number in numbers])
        for place in range(0, len(job_ids), POSTS_AT_ONCE):
            repository.samples.add([PostedSamples(job_id, columns, at) for job_id in job_ids[place:][:POSTS_AT_ONCE]])


def first_round(url: str, cluster: FakeCluster, folder: Path, fence: int) -> dict[str, Any]:
    """Of a service that starts now: its parts are made anew, and nothing is in memory."""
    repository = Repository(create_engine_from_url(url))
    rounds = make_rounds(repository, cluster, folder)
    cpu, begun = time.process_time(), time.perf_counter()
    record = rounds.run("start", fence)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    repository.close()
    parts = {name: round(value, 3) for name, value in record.phase_seconds.items()}
    return {"seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "parts": parts}


def kept_bytes(engine: Engine) -> tuple[int, int]:
    """Histories that are stored, and the bytes of all of them."""
    with engine.connect() as connection:
        found = connection.execute(select(func.count(), func.sum(func.length(JobHistoryRow.document)))).one()
    return found[0], found[1] or 0


def measure(options: argparse.Namespace, url: str, folder: Path) -> dict[str, Any]:
    """All figures."""
    upgrade(url)
    engine = create_engine_from_url(url)
    repository = Repository(engine)
    node = Resources(cpu=10.0 * 16, memory_bytes=2**44)
    cluster = FakeCluster([Node(f"node-{n:04d}", node) for n in range(-(-options.running // 16))])
    lease = repository.leases.acquire(LEADER_LEASE, "benchmark", LEASE_SECONDS)
    assert lease is not None, "the database is in use"
    submit(repository, options.jobs)
    before = make_rounds(repository, cluster, folder)
    before.run("benchmark", lease.token)
    running = form_memberships(repository)
    post(repository, running, 0, options.samples)
    before.run("benchmark", lease.token)
    n_kept, n_bytes = kept_bytes(engine)
    post(repository, running, options.samples, options.late)
    with_kept = first_round(url, cluster, folder, lease.token)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM job_histories"))
    without = first_round(url, cluster, folder, lease.token)
    repository.close()
    return {
        "jobs": options.jobs,
        "running": len(running),
        "tasks": len(cluster.tasks()),
        "samples": len(running) * (options.samples + options.late),
        "late_samples": len(running) * options.late,
        "kept_histories": n_kept,
        "kept_bytes_each": round(n_bytes / max(n_kept, 1)),
        "database": engine.dialect.name,
        "load": round(os.getloadavg()[0], 1),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "first_round": with_kept,
        "first_round_if_nothing_was_kept": without,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--running", type=int, default=2_000)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--late", type=int, default=50)
    parser.add_argument("--database", help="URL of an empty database; default: SQLite in a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or f"sqlite:///{folder}/optimus.db"
        print(json.dumps(measure(options, url, Path(folder))))


if __name__ == "__main__":
    main()
