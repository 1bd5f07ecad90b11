"""How much telemetry one service process takes: real HTTP on loopback, the service's own web server and store.

    python -m benchmarks.telemetry [--seconds 10] [--workers 8] [--samples 100] [--form columns|samples]
                                   [--database postgresql://…] [--mlflow PYTHON]

Each worker is a process with one connection that posts `--samples` new samples at a time, again as soon as it is
answered, to a job of its own. Without `--database` it is SQLite in a temporary directory; the PostgreSQL database must
be empty. Server and workers share the machine: beside the rate by the clock stands the rate by the server's own
processor time (without PostgreSQL's processes). `--mlflow` names a Python that has MLflow: its tracking server then
takes the same number of metrics by `log_batch`, one metric for a sample, in the same run, on SQLite in a temporary
directory. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from benchmarks import telemetry_mlflow
from benchmarks.telemetry_clients import Target, measure

from optimus_contract.codec import write
from optimus_contract.telemetry import Sample, SampleColumns
from optimus_scheduler.model import Node, Resources
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.process.connections import bounded_protocol
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import WakeUpHub
from optimus_service.settings import Settings
from optimus_service.store.engine import create_engine_from_url, upgrade
from optimus_service.store.records import MembershipRecord
from optimus_service.store.repository import Repository

SECRET = b"benchmark"


def main() -> None:
    """Measure and print."""
    options = _options()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        report = _machine(options) | _measure_service(options, folder)
        if options.mlflow is not None:
            other = stack.enter_context(telemetry_mlflow.serving(options.mlflow, folder, options.workers))
            report["mlflow"] = measure(other, telemetry_mlflow.body, options.samples, options.seconds)
            report["times_mlflow"] = {
                name: round(report[name] / report["mlflow"][name], 2)
                for name in ("samples_per_second", "samples_per_server_cpu_second")
            }
    print(json.dumps(report, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--samples", type=int, default=100, help="in one post")
    parser.add_argument("--form", choices=tuple(FORMS), default="columns", help="of the posts")
    parser.add_argument("--database", help="URL of an empty database; without it SQLite")
    parser.add_argument("--mlflow", type=Path, help="a Python with MLflow, whose server is measured as well")
    return parser.parse_args()


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "database": "sqlite" if options.database is None else options.database.partition(":")[0],
        "form": options.form,
        "workers": options.workers,
        "samples_per_post": options.samples,
        "seconds": options.seconds,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _measure_service(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    url = options.database or f"sqlite:///{folder / 'optimus.db'}"
    upgrade(url)
    tokens = _make_jobs(url, options.workers)
    with _serving(url, folder, tokens) as target:
        report = measure(target, FORMS[options.form], options.samples, options.seconds)
        report["stored"] = _stored(url)
    assert report["stored"] >= report["samples_acknowledged"], "an acknowledged sample is not stored"
    return report


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


def _stored(url: str) -> int:
    """The newest samples' ids count them."""
    repository = Repository(create_engine_from_url(url))
    job_ids = [job.id for job in repository.active_jobs()]
    newest = repository.newest_samples_of_each(job_ids, 1)
    repository.close()
    return sum(sample.id for (sample,) in newest.values())


# --- the server, in a process of its own -----------------------------------------------------------------------------


@contextmanager
def _serving(url: str, folder: Path, tokens: dict[str, str]) -> Iterator[Target]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(url, folder, theirs), daemon=True)
    process.start()
    port: int = ours.recv()
    assert process.pid is not None, "it was started"
    jobs = [(f"/v1/jobs/{job_id}/telemetry", {"Authorization": f"Bearer {token}"}) for job_id, token in tokens.items()]
    try:
        yield Target(port, process.pid, jobs)
    finally:
        process.terminate()
        process.join()


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
    config = uvicorn.Config(
        create_app(services), http=bounded_protocol(), ws="none", log_level="warning", access_log=False
    )
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    told.send(listener.getsockname()[1])
    uvicorn.Server(config).run(sockets=[listener])


# --- what the workers post -------------------------------------------------------------------------------------------


def _as_columns(first: int, n_samples: int) -> Any:
    columns = SampleColumns.of([_sample(first + offset) for offset in range(n_samples)])
    return {"columns": write(columns, without_none=True)}


def _as_samples(first: int, n_samples: int) -> Any:
    return {"samples": [write(_sample(first + offset), without_none=True) for offset in range(n_samples)]}


FORMS: dict[str, Callable[[int, int], Any]] = {"columns": _as_columns, "samples": _as_samples}


def _sample(step: int) -> Sample:
    return Sample(
        membership_epoch=1,
        rank=0,
        sequence=step,
        workers=1,
        servers=1,
        at=time.time(),
        step=step + 1,
        data_epoch=step / 100,
        loss=1 / (step + 1),
        n_examples=64,
        seconds=0.1,
        compute_seconds=0.05,
        push_seconds=0.01,
        pull_seconds=0.01,
    )


if __name__ == "__main__":
    main()
