"""What a scheduling round asks of the database: statements, transactions and CPU seconds.

    python -m benchmarks.round_statements [--jobs 500] [--database URL]

Runs the rounds of the service (observer, planner, applier, store) on a cluster that starts nothing, on SQLite in a
temporary folder or on an empty database. Two rounds are measured: one that starts the tasks of so many jobs, and a
quiet one, with all jobs training as they should and no news since the round before. One JSON object is printed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, event

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Sample, SampleColumns
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.lifecycle import MembershipFormed
from optimus_scheduler.model import Node, Resources, Role
from optimus_service import server
from optimus_service.clusters.fake import FakeCluster
from optimus_service.loop.apply import Applier
from optimus_service.loop.launch import LaunchContext
from optimus_service.loop.round import Round
from optimus_service.loop.told_predictions import told_predictions
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.requests import checked
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.records import MembershipRecord, PostedSamples, PredictionRecord
from optimus_service.store.repository import LEADER_LEASE, Repository

SAMPLES_PER_JOB = 20
LEASE_SECONDS = 3600.0
"""Longer than any run."""


@dataclass
class Counts:
    """What was sent to the database."""

    statements: int = 0
    transactions: int = 0


@contextmanager
def counted(engine: Engine) -> Iterator[Counts]:
    """Counts until the block ends. The beginning and the end of a transaction are no statements."""
    counts = Counts()

    def statement(_connection: object, _cursor: object, words: str, *_: object) -> None:
        counts.statements += not words.startswith("BEGIN")

    def begin(_connection: object) -> None:
        counts.transactions += 1

    event.listen(engine, "before_cursor_execute", statement)
    event.listen(engine, "begin", begin)
    try:
        yield counts
    finally:
        event.remove(engine, "before_cursor_execute", statement)
        event.remove(engine, "begin", begin)


def submit(repository: Repository, n_jobs: int) -> None:
    """Jobs of a coordinator, a server and a worker."""
    body = {"name": "job", "task": "m:f", "workers": {"max": 1}, "servers": {"max": 1}}
    spec = write(checked(JobSpec, body))
    for number in range(n_jobs):
        job_id = f"job-{number:05d}"
        repository.jobs.create(job_id, {**spec, "name": job_id}, "nonce", None, "hash", time.time())


def train(repository: Repository) -> None:
    """Every job has what it should have, and has told of some steps."""
    for job_id in form_memberships(repository):
        at = time.time()
        samples = SampleColumns.of([a_sample(number, at) for number in range(SAMPLES_PER_JOB)])
        repository.samples.add([PostedSamples(job_id, samples, at)])


def form_memberships(repository: Repository, at: float | None = None) -> list[str]:
    """Every job that should have tasks has them, `at` this moment (POSIX seconds; None: now); which ones had none."""
    at = time.time() if at is None else at
    formed = []
    for job in repository.jobs.active():
        if job.membership_epoch or job.wanted.is_empty:
            continue
        tasks = repository.wanted.get(job.id).tasks
        formed.append(job.id)
        names = {role: tuple(task.key.name for task in tasks if task.key.role is role) for role in Role}
        repository.memberships.report(
            job.id,
            MembershipRecord(
                job_id=job.id,
                epoch=1,
                generation=job.generation,
                at=at,
                step=0,
                workers=names[Role.WORKER],
                servers=names[Role.SERVER],
                cause="start",
                pause_seconds=0.5,
            ),
        )
        repository.jobs.advance(job.id, MembershipFormed(1), at)
        repository.jobs.put_profile(
            job.id, {"n_parameters": 10, "n_examples": 640, "global_batch_size": 32, "steps_per_epoch": 20.0}
        )
    return formed


def a_sample(number: int, at: float) -> Sample:
    """One step of a second."""
    return Sample(
        membership_epoch=1,
        rank=0,
        sequence=number,
        workers=1,
        servers=1,
        at=at,
        step=number + 1,
        n_steps=1,
        data_epoch=(number + 1) / 20,
        loss=1.0 / (0.02 * number + 0.5) + 0.1,
        n_examples=32,
        seconds=1.0,
    )


def measured(engine: Engine, a_round: Callable[[], object], n_jobs: int) -> dict[str, float]:
    """Of one round."""
    with counted(engine) as counts:
        started = time.process_time()
        a_round()
        seconds = time.process_time() - started
    return {
        "statements": counts.statements,
        "transactions": counts.transactions,
        "statements_per_job": round(counts.statements / n_jobs, 2),
        "cpu_seconds": round(seconds, 3),
    }


def make_rounds(repository: Repository, cluster: FakeCluster, directory: Path) -> Round:
    """The parts of the service that make its rounds."""
    settings = Settings(data_directory=directory)
    context = LaunchContext("http://127.0.0.1:1", directory / "jobs", JobTokens(b"secret"))
    applier = Applier(cluster, LongPolls(repository.wanted.generations), context, time.time)
    planner = server.make_planner(policy_named("optimus"), settings)
    known = server.Known.of(settings, repository)

    def told(made: Sequence[PredictionRecord]) -> list[PredictionRecord]:
        return told_predictions(repository, made, time.time(), 0.0)

    return server.make_rounds(settings, repository, known, cluster, planner, applier, time.time, told=told)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--database", help="URL of an empty database; default: SQLite in a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.database or f"sqlite:///{folder}/optimus.db"
        upgrade(url)
        engine = create_engine_from_url(url)
        repository = Repository(engine)
        cluster = FakeCluster([Node(f"node-{n}", Resources(8.0, 2**36)) for n in range(-(-arguments.jobs // 2))])
        rounds = make_rounds(repository, cluster, Path(folder))
        lease = repository.leases.acquire(LEADER_LEASE, "benchmark", LEASE_SECONDS)
        assert lease is not None, "the database is in use"
        rounds.run("benchmark", lease.token)  # prunes, and knows that there is nothing
        submit(repository, arguments.jobs)
        starts = measured(engine, lambda: rounds.run("benchmark", lease.token), arguments.jobs)
        n_tasks = len(cluster.tasks())
        train(repository)
        rounds.run("benchmark", lease.token)  # reads the samples
        quiet = measured(engine, lambda: rounds.run("benchmark", lease.token), arguments.jobs)
        repository.close()
    kind = engine.dialect.name
    print(json.dumps({"jobs": arguments.jobs, "database": kind, "tasks": n_tasks, "starts": starts, "quiet": quiet}))


if __name__ == "__main__":
    main()
