"""How listing, searching and pruning grow with the number of ended jobs: a database of many beside one of 1,000.

    python -m benchmarks.ended_jobs [--jobs 1000000] [--few 1000] [--repeats 20] [--database URL]

Both databases are filled by SQL: ended jobs of many owners and projects, each with two labels and an event; 1,000 of
them, the same number in both, have samples and rounds that are old enough to go. Measured are calls of the repository
that the API makes, the least of `--repeats` (other programs of the machine make some of them slow), then two sweeps of
retention: the first, which marks all jobs, and one that finds nothing to do. With PostgreSQL each size has a database
of its own, made beside the one that `--database` names. Prints one JSON object: milliseconds for both, and the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import make_url, text

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_scheduler.model import JobState
from optimus_service.requests import checked
from optimus_service.store.database.engine import create_engine_from_url, upgrade, writing
from optimus_service.store.repository import LEADER_LEASE, Repository

DAY = 86_400.0
NOW = 1_800_000_000.0
KEEP_SECONDS = 30 * DAY
WITH_ROWS = 1_000
ROWS_OF_EACH = 20
AT_ONCE = 5_000
JOBS = """INSERT INTO jobs (id, name, project, owner, spec, state, directive, created_at, started_at, finished_at,
request_hash, token_nonce, generation, wanted_workers, wanted_servers, wanted_tasks, membership_epoch, running_workers,
running_servers, rescales, step, n_samples, version) VALUES (:id, :name, :project, :owner, :spec, 'succeeded', 'run',
:at, :at, :at, 'hash', 'nonce', 1, 0, 0, '[]', 1, 0, 0, 0, 1000, 0, 1)"""
COUNTS = "INSERT INTO ended_jobs SELECT project, state, count(*) FROM jobs GROUP BY project, state"
LABELS = """INSERT INTO job_labels (job_id, name, value, created_at) VALUES
(:id, 'sweep', :sweep, :at), (:id, 'team', :owner, :at)"""
EVENTS = "INSERT INTO events (job_id, at, type, message, data) VALUES (:id, :at, 'JobSubmitted', 'It was.', '{}')"
SAMPLES = "INSERT INTO sample_batches (job_id, last_id, n_samples, received_at, document) VALUES (:id, :n, 1, :at, :d)"
ROUNDS = """INSERT INTO rounds (at, trigger, seconds, phase_seconds, n_jobs, n_actions) VALUES
(:at, 'period', 0.1, '{}', 1, 0)"""


def fill(url: str, n_jobs: int, n_with_rows: int) -> None:
    """The tables by SQL, some thousand jobs in a transaction; `n_with_rows` of them have rows that are to go."""
    upgrade(url)
    engine = writing(create_engine_from_url(url))
    spec = json.dumps(write(checked(JobSpec, {"name": "job", "task": "m:f", "labels": {"sweep": "s", "team": "t"}})))
    rows = (row(number, n_jobs, spec) for number in range(n_jobs))
    while some := list(islice(rows, AT_ONCE)):
        with engine.begin() as connection:
            for statement in (JOBS, LABELS, EVENTS):
                connection.execute(text(statement), some)
    with engine.begin() as connection:
        connection.execute(text(COUNTS))
        few = [row(number * (n_jobs // n_with_rows), n_jobs, spec) for number in range(n_with_rows)]
        samples = [{**each, "n": n, "d": b"x" * 500} for each in few for n in range(1, ROWS_OF_EACH + 1)]
        if samples:
            connection.execute(text(SAMPLES), samples)
        connection.execute(text(ROUNDS), [{"at": NOW - 100 * DAY + n} for n in range(5_000)])
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))
    engine.dispose()


def row(number: int, n_jobs: int, spec: str) -> dict[str, Any]:
    """A job that ended between 400 and 31 days ago."""
    at = NOW - 400 * DAY + 369 * DAY * number / n_jobs
    return {
        "id": f"job-{number:07d}",
        "name": f"train-{number:07d}",
        "project": f"project-{number % 10}",
        "owner": f"user-{number % 20}",
        "sweep": f"sweep-{number // 100}",
        "spec": spec,
        "at": at,
    }


def calls(repository: Repository, n_jobs: int) -> dict[str, Callable[[], object]]:
    """What users ask for; the job and the sweep that are looked for are in the middle."""
    middle = f"{n_jobs // 2:07d}"
    second = repository.jobs.page(limit=50).next_cursor
    sweep = f"sweep-{n_jobs // 200}"
    ended, active = {JobState.SUCCEEDED}, {JobState.QUEUED, JobState.RUNNING}
    return {
        "list": lambda: repository.jobs.page(limit=50),
        "list, next page": lambda: repository.jobs.page(limit=50, cursor=second),
        "list by state": lambda: repository.jobs.page(ended, limit=50),
        "list active": lambda: repository.jobs.page(active, limit=50),
        "list by project": lambda: repository.jobs.page(project="project-7", limit=50),
        "list by owner": lambda: repository.jobs.page(owner="user-7", limit=50),
        "list by label": lambda: repository.jobs.page(labels={"sweep": sweep}, limit=50),
        "list by label of 1 in 20": lambda: repository.jobs.page(labels={"team": "user-7"}, limit=50),
        "list by two labels": lambda: repository.jobs.page(labels={"team": "user-7", "sweep": sweep}, limit=50),
        "list by label, any value": lambda: repository.jobs.page(labels={"sweep": None}, limit=50),
        "list by label, active": lambda: repository.jobs.page(active, labels={"team": "user-7"}, limit=50),
        "find by id": lambda: repository.jobs.page(name_contains=f"job-{middle}", name_match="one"),
        "find by name": lambda: repository.jobs.page(name_contains=f"train-{middle}", name_match="one"),
        "find by beginning": lambda: repository.jobs.page(name_contains=f"train-{middle}", name_match="start"),
        "find by part of the name": lambda: repository.jobs.page(name_contains=f"n-{middle}"),
        "count by state": lambda: repository.jobs.count_by_state(),
        "a round's look": lambda: repository.observed(),
    }


def least_ms(call: Callable[[], object], repeats: int) -> float:
    """After one call that is not counted."""
    call()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return min(seconds) * 1000.0


def swept(repository: Repository, fence: int) -> dict[str, float]:
    """A whole one; the longest transaction is what other writers wait for."""
    leader, longest, total, n_batches = repository.as_leader(fence), 0.0, 0.0, 0
    after: float | None = 0.0
    n = 1
    while n or after is not None:
        begun = time.perf_counter()
        if n:
            n = leader.retention.prune(NOW, KEEP_SECONDS).total
        elif after is not None:
            after = leader.retention.prune_rounds(NOW, KEEP_SECONDS, after).next_after
        took = time.perf_counter() - begun
        longest, total, n_batches = max(longest, took), total + took, n_batches + 1
    return {"ms": total * 1000, "longest_transaction_ms": longest * 1000, "transactions": n_batches}


def measure(url: str, n_jobs: int, repeats: int) -> dict[str, Any]:
    """All figures of one size."""
    begun = time.perf_counter()
    fill(url, n_jobs, WITH_ROWS)
    filled = time.perf_counter() - begun
    repository = Repository(create_engine_from_url(url))
    lease = repository.leases.acquire(LEADER_LEASE, "benchmark", 3600.0)
    assert lease is not None, "the database is new"
    found = {name: least_ms(call, repeats) for name, call in calls(repository, n_jobs).items()}
    first = swept(repository, lease.token)
    found["sweep with nothing to do"] = min(swept(repository, lease.token)["ms"] for _ in range(repeats))
    repository.close()
    return {
        "fill_seconds": round(filled, 1),
        "ms": {name: round(value, 3) for name, value in found.items()},
        "first_sweep": {name: round(value, 1) for name, value in first.items()},
    }


@contextmanager
def database(given: str | None, folder: Path, n_jobs: int) -> Iterator[str]:
    """A new one for this size."""
    if given is None:
        yield f"sqlite:///{folder / f'{n_jobs}.db'}"
        return
    name = f"optimus_ended_{n_jobs}"
    server = create_engine_from_url(given).execution_options(isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield make_url(given).set(database=name).render_as_string(hide_password=False)
        connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--database", help="URL of a PostgreSQL server's database; without it SQLite")
    options = parser.parse_args()
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n_jobs in (options.few, options.jobs):
            with database(options.database, Path(folder), n_jobs) as url:
                found[n_jobs] = measure(url, n_jobs, options.repeats)
    few, many = found[options.few], found[options.jobs]
    ratios = {name: round(many["ms"][name] / max(few["ms"][name], 1e-3), 2) for name in many["ms"]}
    report = {
        "jobs": options.jobs,
        "few": options.few,
        "database": "sqlite" if options.database is None else "postgresql",
        "load": round(os.getloadavg()[0], 1),
        "ratio": ratios,
        "of_many": many,
        "of_few": few,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
