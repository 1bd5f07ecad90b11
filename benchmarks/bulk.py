"""Seconds to submit many jobs in one request, and to cancel them by their label: `optimus serve` as users start it.

    python -m benchmarks.bulk [--jobs 1000] [--repeats 3] [--database postgresql://...]

The service runs its scheduler and the local cluster; the jobs are a sweep of one task, paused, so that the machine does
not begin to train them. The first request also starts the trial of the task (an interpreter that imports torch); later
ones within a minute do not. Submitting one by one, by one client, is measured beside it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from optimus_service.store.database.engine import upgrade

START_SECONDS = 300.0
ONE_BY_ONE = 50


@dataclass(frozen=True)
class Service:
    """One that runs."""

    client: httpx.Client
    pid: int

    def cpu_seconds(self) -> float:
        """Of its process, without its children."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(database: str | None, **environment: str) -> Iterator[Service]:
    """A service of its own data directory, on a free port of this machine."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        settings = {"OPTIMUS_DATA_DIRECTORY": folder, "OPTIMUS_PORT": str(port), **environment}
        if database is not None:
            settings["OPTIMUS_DATABASE_URL"] = database
            upgrade(database)
        optimus = str(Path(sys.executable).with_name("optimus"))
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen([optimus, "serve"], env=os.environ | settings, stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                wait_until_ready(client, Path(folder) / "log")
                yield Service(client, process.pid)
        finally:
            process.terminate()
            process.wait()


def wait_until_ready(client: httpx.Client, log: Path) -> None:
    """Raises `TimeoutError` with the end of the log."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"the service does not start: {log.read_text()[-2000:]}")


def job(index: int, sweep: str) -> dict[str, Any]:
    """One of a sweep."""
    return {
        "name": f"{sweep}-{index}",
        "task": "optimus_workers.zoo.digits:mlp",
        "task_args": {"width": 8 + index},
        "labels": {"sweep": sweep, "index": str(index)},
        "paused": True,
    }


def measure(service: Service, n_jobs: int) -> dict[str, Any]:
    """One sweep, submitted, submitted again and cancelled."""
    sweep, key = f"sweep-{secrets.token_hex(4)}", secrets.token_hex(8)
    body = json.dumps({"jobs": [job(index, sweep) for index in range(n_jobs)]})
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    calls = {
        "submit": ("/v1/jobs:batch", body),
        "repeat": ("/v1/jobs:batch", body),
        "cancel": ("/v1/jobs:cancel", json.dumps({"labels": {"sweep": sweep}})),
    }
    report: dict[str, Any] = {"request_bytes": len(body)}
    for what, (path, content) in calls.items():
        begun, cpu = time.perf_counter(), service.cpu_seconds()
        answer = service.client.post(path, content=content, headers=headers)
        took = {"seconds": time.perf_counter() - begun, "server_cpu_seconds": service.cpu_seconds() - cpu}
        report[what] = {name: round(value, 3) for name, value in took.items()}
        assert answer.raise_for_status().json()["done"] == n_jobs, "it was done for every job"
    return report


def one_by_one(service: Service) -> float:
    """Jobs per second of one client."""
    sweep, begun = f"single-{secrets.token_hex(4)}", time.perf_counter()
    for index in range(ONE_BY_ONE):
        service.client.post("/v1/jobs", json=job(0, sweep) | {"name": f"{sweep}-{index}"}).raise_for_status()
    return round(ONE_BY_ONE / (time.perf_counter() - begun), 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--database", help="URL of an empty database; without it SQLite")
    options = parser.parse_args()
    with serving(options.database) as service:
        report = {
            "jobs": options.jobs,
            "database": "sqlite" if options.database is None else options.database.partition(":")[0],
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "batches": [measure(service, options.jobs) for _ in range(options.repeats)],
            "one_by_one_jobs_per_second": one_by_one(service),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
