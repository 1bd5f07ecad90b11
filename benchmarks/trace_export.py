"""Seconds and memory of `GET /v1/trace` over many ended jobs, from `optimus serve` as users start it.

    python -m benchmarks.trace_export [--jobs 100000] [--measured 5000]

The database (SQLite) is filled by SQL with ended jobs. Of `--measured` of them samples are still there: copies of one
job that trained with several sizes and was told through the store's own calls; the others ended longer ago than
samples are kept. Prints one JSON object: seconds until the first line and the last, the service's processor seconds,
and by how much its memory grew meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bulk import Service, serving
from benchmarks.ended_jobs import fill
from benchmarks.round_statements import a_sample
from sqlalchemy import Connection, text

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import SampleColumns
from optimus_scheduler.lifecycle import CancelRequested, MembershipFormed
from optimus_service.requests import checked
from optimus_service.store.database.engine import create_engine_from_url, writing
from optimus_service.store.records import MembershipRecord, PostedSamples
from optimus_service.store.repository import Repository

MODEL = "measured-model"
SAMPLES = 200


def measured(url: str, n_jobs: int) -> None:
    """One job by the store's own calls, and copies of it by SQL."""
    engine = create_engine_from_url(url)
    repository, now = Repository(engine), time.time()
    spec = write(checked(JobSpec, {"name": MODEL, "task": "m:f"}))
    repository.jobs.create(MODEL, spec, "nonce", None, "hash", now - 7200)
    report = MembershipRecord(
        job_id=MODEL, epoch=1, generation=1, at=now - 7000, step=0, workers=("w",), servers=("s",), cause="start"
    )
    repository.memberships.report(MODEL, report)
    repository.jobs.advance(MODEL, MembershipFormed(1), now - 7000)
    columns = SampleColumns.of([a_sample(number, now - 7000) for number in range(SAMPLES)])
    repository.samples.add([PostedSamples(MODEL, columns, now)])
    repository.jobs.advance(MODEL, CancelRequested(has_tasks=False), now - 3600)
    with writing(engine).begin() as connection:
        for table in ("jobs", "memberships", "sample_batches"):
            copy(connection, table, n_jobs)
    repository.close()


def copy(connection: Connection, table: str, n_jobs: int) -> None:
    """The model's rows of a table, under other ids."""
    names = [row.name for row in connection.execute(text(f"PRAGMA table_info({table})"))]
    key = "id" if table == "jobs" else "job_id"
    values = ", ".join(f"'m-' || n || '-' || {name}" if name == key else name for name in names)
    numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :n)"
    statement = f"INSERT INTO {table} ({', '.join(names)}) {numbers} SELECT {values} FROM {table}, numbers WHERE "
    connection.execute(text(f"{statement} {key} = :model"), {"n": n_jobs - 1, "model": MODEL})


def resident_megabytes(pid: int) -> float:
    """Of the process now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def export(service: Service) -> dict[str, Any]:
    """One whole answer, line by line."""
    before = most = resident_megabytes(service.pid)
    begun, cpu = time.perf_counter(), service.cpu_seconds()
    first, n_lines, n_bytes, last = 0.0, 0, 0, ""
    with service.client.stream("GET", "/v1/trace") as answer:
        for line in answer.iter_lines():
            first = first or time.perf_counter() - begun
            n_lines, n_bytes, last = n_lines + 1, n_bytes + len(line) + 1, line
            if n_lines % 500 == 0:
                most = max(most, resident_megabytes(service.pid))
    seconds = time.perf_counter() - begun
    return {
        "seconds": round(seconds, 2),
        "server_cpu_seconds": round(service.cpu_seconds() - cpu, 2),
        "seconds_to_first_line": round(first, 3),
        "lines": n_lines,
        "megabytes": round(n_bytes / 2**20, 2),
        "memory_grew_megabytes": round(max(most, resident_megabytes(service.pid)) - before, 1),
        **json.loads(last),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--measured", type=int, default=5_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/many.db"
        fill(url, options.jobs - options.measured, 0)
        measured(url, options.measured)
        with serving(url, OPTIMUS_KEEP_SECONDS=str(1e9)) as service:
            exports = [export(service) for _ in range(2)]
    report = {"jobs": options.jobs, "measured": options.measured, "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(report | {"exports": exports}))


if __name__ == "__main__":
    main()
