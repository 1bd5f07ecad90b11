"""What one job of a year costs the database: bytes per table, after each quarter.

    python -m benchmarks.year [--days 365] [--posts 4] [--samples 20] [--rounds 4]

A job of 8 workers trains for `--days` of virtual time on a cluster that starts nothing. Each day every worker posts
`--samples` samples in each of `--posts` posts, which the store takes as it takes those of the API, and `--rounds`
scheduling rounds read them, decide, and keep what is known: the real ones, by the virtual clock. Real workers post more
often; what is kept of samples has a bound that does not depend on it, which the figures after each quarter show. Rows
of decisions and events grow with what happens. SQLite; the bytes of a table are those of its values. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.round_statements import form_memberships
from sqlalchemy import Engine, text

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Sample, SampleColumns
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Node, Resources
from optimus_service import server
from optimus_service.clusters.fake import FakeCluster
from optimus_service.loop.apply import Applier
from optimus_service.loop.launch import LaunchContext
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.requests import checked
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.records import PostedSamples
from optimus_service.store.repository import LEADER_LEASE, Repository

WORKERS, SERVERS = 8, 2
DAY = 86_400.0
JOB = "job-of-a-year"
OF_JOB = {
    "jobs": "id",
    "job_histories": "job_id",
    "sample_batches": "job_id",
    "sample_blocks": "job_id",
    "decisions": "job_id",
    "events": "job_id",
    "memberships": "job_id",
    "tasks": "job_id",
    "promises": "job_id",
    "expected_times": "job_id",
}


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def table_bytes(engine: Engine) -> dict[str, int]:
    """Of the job's rows."""
    found = {}
    with engine.connect() as connection:
        for table, key in OF_JOB.items():
            names = [row.name for row in connection.execute(text(f"PRAGMA table_info({table})"))]
            lengths = " + ".join(f"coalesce(length(cast({name} AS blob)), 0)" for name in names)
            words = f"SELECT coalesce(sum({lengths}), 0) FROM {table} WHERE {key} = :job"
            found[table] = int(connection.execute(text(words), {"job": JOB}).scalar_one())
    return found


def post(repository: Repository, first: int, n_samples: int, at: float, seconds: float) -> None:
    """So many samples of each worker, over this time."""
    for rank in range(WORKERS):
        columns = SampleColumns.of(
            [
                Sample(
                    membership_epoch=1,
                    rank=rank,
                    sequence=number,
                    workers=WORKERS,
                    servers=SERVERS,
                    at=at + seconds * (number - first) / n_samples,
                    step=100 * (number + 1),
                    n_steps=100,
                    data_epoch=(number + 1) / 20,
                    loss=1.0 / (0.02 * number + 0.5) + 0.1,
                    n_examples=3200,
                    seconds=seconds / n_samples,
                )
                for number in range(first, first + n_samples)
            ]
        )
        repository.samples.add([PostedSamples(JOB, columns, at + seconds)])


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    settings, clock = Settings(data_directory=folder), Clock()
    upgrade(settings.url)
    engine = create_engine_from_url(settings.url)
    repository = Repository(engine)
    cluster = FakeCluster([Node("node", Resources(64.0, 2**38))])
    context = LaunchContext("http://127.0.0.1:1", folder / "jobs", JobTokens(b"secret"))
    applier = Applier(cluster, LongPolls(repository.wanted.generations), context, clock)
    planner, known = server.make_planner(policy_named("optimus"), settings), server.Known.of(settings, repository)
    rounds = server.make_rounds(settings, repository, known, cluster, planner, applier, clock)
    sizes = {"workers": {"min": WORKERS, "max": WORKERS}, "servers": {"min": SERVERS, "max": SERVERS}}
    body = {"name": JOB, "task": "m:f", "convergence": {"max_steps": 10**11}, **sizes}
    repository.jobs.create(JOB, write(checked(JobSpec, body)), "nonce", None, "hash", clock())
    lease = repository.leases.acquire(LEADER_LEASE, "benchmark", 1e6)
    assert lease is not None, "the database is new"
    rounds.run("submit", lease.token)
    assert form_memberships(repository) == [JOB], "the job has its tasks"
    quarters, first = {}, 0
    for day in range(1, options.days + 1):
        for _ in range(options.posts):
            post(repository, first, options.samples, clock.now, DAY / options.posts)
            first += options.samples
            clock.now += DAY / options.posts
            if first % (options.samples * max(1, options.posts // options.rounds)) == 0:
                rounds.run("period", lease.token)
        if day % max(1, options.days // 4) == 0:
            found = table_bytes(engine)
            quarters[day] = {"total": sum(found.values())} | {name: n for name, n in found.items() if n}
    repository.close()
    return {
        "days": options.days,
        "workers": WORKERS,
        "samples": first * WORKERS,
        "rounds": options.days * options.rounds,
        "bytes_after_days": quarters,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--posts", type=int, default=4, help="of each worker and day")
    parser.add_argument("--samples", type=int, default=20, help="in one post")
    parser.add_argument("--rounds", type=int, default=4, help="each day; at most as many as posts")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(parser.parse_args(), Path(folder))))


if __name__ == "__main__":
    main()
