"""How much telemetry one service process takes: real HTTP on loopback, uvicorn, SQLite in a temporary directory.

    python -m benchmarks.telemetry [--seconds 10] [--workers 8] [--samples 10]

Each worker is a thread with one connection that posts `--samples` new samples at a time, again as soon as it is
answered, to a job of its own. Server and workers share the machine, as on a laptop. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import socket
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from optimus_scheduler.model import Node, Resources
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import WakeUpHub
from optimus_service.settings import Settings
from optimus_service.store.engine import create_engine_from_url, upgrade
from optimus_service.store.records import MembershipRecord
from optimus_service.store.repository import Repository

SECRET = b"benchmark"
WARM_UP_SECONDS = 1.0


def main() -> None:
    """Measure and print."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'optimus.db'}"
        upgrade(url)
        tokens = _make_jobs(url, options.workers)
        server, port = _start_server(url, Path(folder))
        try:
            seconds = _measure(port, tokens, options.samples, options.seconds)
        finally:
            server.terminate()
            server.join()
    print(json.dumps(_report(options, seconds), indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--samples", type=int, default=10, help="in one post")
    return parser.parse_args()


def _make_jobs(url: str, n_jobs: int) -> dict[str, str]:
    """Jobs with a first membership of one worker; their tokens by id."""
    repository = Repository(create_engine_from_url(url))
    tokens = {}
    for number in range(n_jobs):
        job_id = f"job-{number}"
        spec = {"name": job_id, "project": "default", "task": "m:f"}
        repository.create_job(job_id, spec, "nonce", None, "", time.time())
        report: dict[str, Any] = {"epoch": 1, "generation": 1, "at": time.time(), "step": 0, "cause": "start"}
        repository.report_membership(job_id, MembershipRecord(job_id=job_id, workers=("w",), servers=("s",), **report))
        tokens[job_id] = JobTokens(SECRET).issue(job_id, "nonce")
    repository.close()
    return tokens


# --- the server, in a process of its own -----------------------------------------------------------------------------


def _start_server(url: str, folder: Path) -> tuple[multiprocessing.process.BaseProcess, int]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(url, folder, theirs), daemon=True)
    process.start()
    port: int = ours.recv()
    return process, port


def _serve(url: str, folder: Path, told: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    repository = Repository(create_engine_from_url(url))
    services = Services(
        settings=Settings(data_directory=folder, database_url=url),
        repository=repository,
        cluster=FakeCluster([Node("node", Resources(8, 2**34))]),
        hub=WakeUpHub(repository.generations),
        job_tokens=JobTokens(SECRET),
        version="benchmark",
    )
    config = uvicorn.Config(create_app(services), log_level="warning", access_log=False)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    told.send(listener.getsockname()[1])
    uvicorn.Server(config).run(sockets=[listener])


# --- the workers -----------------------------------------------------------------------------------------------------


def _measure(port: int, tokens: dict[str, str], n_samples: int, seconds: float) -> list[float]:
    """How long each post after the warm-up took."""
    measured: list[float] = []
    begin = time.monotonic() + WARM_UP_SECONDS
    threads = [
        threading.Thread(target=_post_until, args=(port, job_id, token, n_samples, begin, begin + seconds, measured))
        for job_id, token in tokens.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return measured


def _post_until(
    port: int, job_id: str, token: str, n_samples: int, begin: float, end: float, measured: list[float]
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    step = 0
    while time.monotonic() < end:
        body = json.dumps({"samples": [_sample(step + offset) for offset in range(n_samples)]})
        started = time.monotonic()
        connection.request("POST", f"/v1/jobs/{job_id}/telemetry", body, headers)
        answer = json.loads(connection.getresponse().read())
        assert answer == {"accepted": n_samples, "ignored": []}, answer
        if started >= begin:
            measured.append(time.monotonic() - started)
        step += n_samples
    connection.close()


def _sample(step: int) -> dict[str, Any]:
    return {
        "membership_epoch": 1,
        "rank": 0,
        "sequence": step,
        "workers": 1,
        "servers": 1,
        "at": time.time(),
        "step": step + 1,
        "data_epoch": step / 100,
        "loss": 1 / (step + 1),
        "n_examples": 64,
        "seconds": 0.1,
        "compute_seconds": 0.05,
        "push_seconds": 0.01,
        "pull_seconds": 0.01,
    }


def _report(options: argparse.Namespace, seconds: list[float]) -> dict[str, Any]:
    centiles = statistics.quantiles(seconds, n=100)
    return {
        "posts_per_second": round(len(seconds) / options.seconds, 1),
        "samples_per_second": round(len(seconds) * options.samples / options.seconds, 1),
        "median_seconds": round(statistics.median(seconds), 5),
        "p99_seconds": round(centiles[98], 5),
        "workers": options.workers,
        "samples_per_post": options.samples,
        "seconds": options.seconds,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


if __name__ == "__main__":
    main()
