"""Load for a long time, with kills of the service and of the database: is anything that was acknowledged lost?

    python -m benchmarks.soak [--minutes 60] [--database sqlite|postgresql] [--kill-seconds 120] [--trackers 8]
                              [--seed 1]

`optimus serve` runs as users start it, on SQLite or on a PostgreSQL server of its own. Trackers post telemetry of
tracked jobs, 100 samples at a time, each post again until it is acknowledged; somebody submits 20 jobs at a time by
`POST /v1/jobs:batch` and cancels the oldest by their label; somebody reads the list, the cluster and `/metrics`. Every
`--kill-seconds` or so (a random time, by the seed) the service gets SIGKILL and is started again, every third time the
database instead, where it has a process. At the end every acknowledged job is looked for, and for each tracker the
service must have counted exactly the samples that were acknowledged.

Prints one JSON object; exit code 1 when something was lost or counted twice. Slopes are least squares over the whole
time, with their standard errors: of the memory of the service at the end of each of its lives, and of the median
latency of each ten seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from benchmarks.bulk import wait_until_ready
from benchmarks.round_statements import a_sample
from benchmarks.soak_database import Postgres, postgres
from benchmarks.trace_export import resident_megabytes
from sqlalchemy import text

from optimus_contract.codec import write
from optimus_contract.telemetry import SampleColumns
from optimus_service.store.database.engine import create_engine_from_url, upgrade

SAMPLES = 100
JOBS_AT_ONCE = 20
SWEEPS_KEPT = 5
"""Sweeps that stay active; older ones are cancelled."""
RETRY_SECONDS = 0.2
TIMEOUT_SECONDS = 30.0
WINDOW_SECONDS = 10.0
WARM_SECONDS = 15.0
"""Of a life of the service, whose memory is not looked at before."""


@dataclass
class Seen:
    """What clients saw. Each list is written by any thread; appending is atomic."""

    latencies: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """When each acknowledged call began and how long it took, by kind; seconds since the start."""
    acknowledged_samples: dict[str, int] = field(default_factory=dict)
    acknowledged_jobs: list[str] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Calls that were not answered well, by kind and status."""
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Of the service at the end of its lives: seconds since the start, MiB."""
    errors: list[str] = field(default_factory=list)


class Service:
    """`optimus serve`, which is killed and started again at one address."""

    def __init__(self, folder: Path, url: str | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        settings = {"OPTIMUS_DATA_DIRECTORY": str(folder), "OPTIMUS_PORT": str(self.port)}
        self._environment = os.environ | settings | ({} if url is None else {"OPTIMUS_DATABASE_URL": url})
        self._log = folder / "soak.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"http://127.0.0.1:{self.port}"
        self.url = url or f"sqlite:///{folder}/optimus.db"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> None:
        """Raises `TimeoutError` with the end of its log."""
        optimus = str(Path(sys.executable).with_name("optimus"))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([optimus, "serve"], env=self._environment, stdout=log, stderr=log)
        with httpx.Client(base_url=self.address, timeout=TIMEOUT_SECONDS) as client:
            wait_until_ready(client, self._log)

    def kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()


class Load:
    """The clients, each a thread."""

    def __init__(self, address: str, pause_seconds: float) -> None:
        self._address = address
        self._pause_seconds = pause_seconds
        self.seen = Seen()
        self.begun = time.monotonic()
        self._stopping = threading.Event()
        self._abandoned = False
        self._threads: list[threading.Thread] = []

    def begin(self, n_trackers: int) -> None:
        """All of them; the time counts from here."""
        self.begun = time.monotonic()
        bodies: list[Callable[[httpx.Client], None]] = [self._track for _ in range(n_trackers)]
        for number, body in enumerate([*bodies, self._submit, self._read]):
            thread = threading.Thread(target=self._run, args=(body,), name=f"client-{number}")
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Each ends with its call acknowledged."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """End without waiting for answers: there are none to come."""
        self._abandoned = True
        self.stop()

    def _run(self, body: Callable[[httpx.Client], None]) -> None:
        try:
            with httpx.Client(base_url=self._address, timeout=TIMEOUT_SECONDS) as client:
                body(client)
        except Exception as error:  # noqa: BLE001 - the report says it, and fails
            self.seen.errors.append(f"{threading.current_thread().name}: {type(error).__name__}: {error}")

    def _until_acknowledged(self, client: httpx.Client, kind: str, method: str, path: str, **options: Any) -> Any:
        """The answer. Repeated while the service is away or busy; any other refusal is an error."""
        while not self._abandoned:
            begun = time.monotonic()
            try:
                answer = client.request(method, path, **options)
            except httpx.TransportError:
                self.seen.failures[f"{kind}: no answer"] += 1
            else:
                if answer.is_success:
                    self.seen.latencies[kind].append((begun - self.begun, time.monotonic() - begun))
                    return answer.json() if answer.content else None
                self.seen.failures[f"{kind}: {answer.status_code}"] += 1
                if answer.status_code not in (429, 500, 503):
                    raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
            time.sleep(RETRY_SECONDS)
        raise RuntimeError("the service did not come back")

    def _track(self, client: httpx.Client) -> None:
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        spec = {"name": "soak-run", "tracked": True}
        job_id = self._until_acknowledged(client, "submit", "POST", "/v1/jobs", json=spec, headers=headers)["id"]
        self.seen.acknowledged_jobs.append(job_id)
        token = self._until_acknowledged(client, "token", "POST", f"/v1/jobs/{job_id}/token")["token"]
        own = {"Authorization": f"Bearer {token}"}
        membership = {"epoch": 1, "generation": 1, "at": time.time(), "step": 0, "cause": "start"}
        membership |= {"workers": ["w"], "servers": []}
        self._until_acknowledged(
            client, "membership", "POST", f"/v1/jobs/{job_id}/membership", json=membership, headers=own
        )
        self.seen.acknowledged_samples[job_id] = 0
        for first in itertools.count(0, SAMPLES):
            at = time.time()
            columns = SampleColumns.of([a_sample(number, at) for number in range(first, first + SAMPLES)])
            body = {"columns": write(columns, without_none=True)}
            self._until_acknowledged(
                client, "telemetry", "POST", f"/v1/jobs/{job_id}/telemetry", json=body, headers=own
            )
            self.seen.acknowledged_samples[job_id] = first + SAMPLES
            if self._stopping.wait(self._pause_seconds):
                return

    def _submit(self, client: httpx.Client) -> None:
        for number in itertools.count():
            sweep = f"sweep-{number}"
            jobs = [
                {"name": f"{sweep}-{index}", "task": "optimus_workers.zoo.digits:mlp", "paused": True}
                | {"labels": {"sweep": sweep}}
                for index in range(JOBS_AT_ONCE)
            ]
            key = {"Idempotency-Key": secrets.token_hex(8)}
            made = self._until_acknowledged(client, "batch", "POST", "/v1/jobs:batch", json={"jobs": jobs}, headers=key)
            self.seen.acknowledged_jobs += [item["id"] for item in made["jobs"]]
            if number >= SWEEPS_KEPT:
                old = {"labels": {"sweep": f"sweep-{number - SWEEPS_KEPT}"}}
                self._until_acknowledged(client, "cancel", "POST", "/v1/jobs:cancel", json=old)
            if self._stopping.wait(5.0):
                return

    def _read(self, client: httpx.Client) -> None:
        while not self._stopping.wait(1.0):
            for kind, path in (("list", "/v1/jobs"), ("cluster", "/v1/cluster"), ("metrics", "/metrics")):
                begun = time.monotonic()
                try:
                    client.get(path).raise_for_status()
                except httpx.HTTPError:
                    self.seen.failures[f"{kind}: failed"] += 1
                else:
                    self.seen.latencies[kind].append((begun - self.begun, time.monotonic() - begun))


def slope(points: list[tuple[float, float]], digits: int = 3) -> dict[str, float] | None:
    """Least squares of the second by the first (seconds), for an hour; its standard error. None for fewer than three
    points."""
    if len(points) < 3:
        return None
    x, y = zip(*points, strict=True)
    fit = statistics.linear_regression(x, y)
    residual = sum((b - fit.intercept - fit.slope * a) ** 2 for a, b in points) / (len(points) - 2)
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    error = (residual / spread) ** 0.5
    return {"per_hour": round(fit.slope * 3600, digits), "standard_error": round(error * 3600, digits)}


def of_calls(calls: list[tuple[float, float]]) -> dict[str, Any]:
    """Milliseconds."""
    windows: dict[int, list[float]] = defaultdict(list)
    for at, seconds in calls:
        windows[int(at // WINDOW_SECONDS)].append(seconds * 1000)
    medians = [(number * WINDOW_SECONDS, statistics.median(values)) for number, values in sorted(windows.items())]
    times = sorted(seconds * 1000 for _, seconds in calls)
    return {
        "calls": len(times),
        "median_ms": round(statistics.median(times), 1),
        "p99_ms": round(times[int(len(times) * 0.99)], 1),
        "slope_of_median_ms": slope(medians),
    }


def torment(
    service: Service, load: Load, server: Postgres | None, minutes: float, kill_seconds: float, chance: random.Random
) -> dict[str, int]:
    """Kill and start again until the time is over; how often each was killed."""
    end, kills = load.begun + minutes * 60, {"service": 0, "database": 0}
    for number in itertools.count(1):
        pause = kill_seconds * chance.uniform(0.5, 1.5)
        if time.monotonic() + pause + WARM_SECONDS > end:
            time.sleep(max(0.0, end - time.monotonic()))
            return kills
        time.sleep(pause)
        if server is not None and number % 3 == 0:
            server.kill()
            kills["database"] += 1
            server.start()
            continue
        if pause > WARM_SECONDS:
            load.seen.memory.append((time.monotonic() - load.begun, resident_megabytes(service.pid)))
        service.kill()
        kills["service"] += 1
        service.start()
    raise AssertionError("the loop has no end but the time's")


def stored(url: str) -> tuple[dict[str, int], set[str]]:
    """Samples that were counted, by job; all jobs."""
    engine = create_engine_from_url(url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, n_samples FROM jobs")).all()
    engine.dispose()
    return {row.id: row.n_samples for row in rows if row.n_samples}, {row.id for row in rows}


@contextmanager
def database(kind: str) -> Iterator[Postgres | None]:
    """The server, where there is one."""
    if kind == "sqlite":
        yield None
        return
    with postgres() as server:
        yield server


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name, database(options.database) as server:
        service = Service(Path(name), None if server is None else server.url)
        upgrade(service.url)
        load = Load(service.address, options.pause_seconds)
        try:
            service.start()
            load.begin(options.trackers)
            kills = torment(service, load, server, options.minutes, options.kill_seconds, chance)
            load.stop()
            load.seen.memory.append((time.monotonic() - load.begun, resident_megabytes(service.pid)))
        finally:
            load.abandon()
            service.kill()
        counted, there = stored(service.url)
    seen = load.seen
    wrong = {
        job_id: {"acknowledged": n, "counted": counted.get(job_id, 0)}
        for job_id, n in seen.acknowledged_samples.items()
        if counted.get(job_id, 0) != n
    }
    seconds = time.monotonic() - load.begun
    return {
        "database": options.database,
        "minutes": round(seconds / 60, 1),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "kills": kills,
        "samples_acknowledged": sum(seen.acknowledged_samples.values()),
        "samples_per_second": round(sum(seen.acknowledged_samples.values()) / seconds),
        "samples_lost_or_counted_twice": wrong,
        "jobs_acknowledged": len(seen.acknowledged_jobs),
        "jobs_lost": sorted(set(seen.acknowledged_jobs) - there),
        "errors": seen.errors,
        "not_answered": dict(seen.failures),
        "memory_megabytes": [round(value) for _, value in seen.memory],
        "slope_of_memory_megabytes": slope(seen.memory),
        "latency": {kind: of_calls(calls) for kind, calls in sorted(seen.latencies.items()) if len(calls) >= 20},
    }


def main() -> None:
    """Run, print, and fail where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--kill-seconds", type=float, default=120.0, help="on average between kills")
    parser.add_argument("--trackers", type=int, default=8)
    parser.add_argument("--pause-seconds", type=float, default=0.25, help="of a tracker after each post")
    parser.add_argument("--seed", type=int, default=1)
    report = soak(parser.parse_args())
    print(json.dumps(report))
    if report["samples_lost_or_counted_twice"] or report["jobs_lost"] or report["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
