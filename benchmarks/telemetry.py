"""How much telemetry one service process takes: `optimus serve` as users start it, real HTTP on loopback.

    python -m benchmarks.telemetry [--seconds 10] [--workers 8] [--samples 100] [--form columns|samples]
                                   [--database postgresql://…] [--mlflow PYTHON]

Each worker is a process with one connection that posts `--samples` new samples at a time, again as soon as it is
answered, to a tracked job of its own. The service's rounds go on as ever, and read what is posted. Without `--database`
it is SQLite in a temporary directory; the PostgreSQL database must be empty. Server and workers share the machine:
beside the rate by the clock stands the rate by the server's own processor time (without PostgreSQL's processes).
`--mlflow` names a Python that has MLflow: its tracking server then takes the same number of metrics by `log_batch`, one
metric for a sample, in the same run, on SQLite in a temporary directory. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from benchmarks import telemetry_mlflow
from benchmarks.bulk import serving
from benchmarks.soak import stored
from benchmarks.telemetry_clients import Target, measure

from optimus_contract.codec import write
from optimus_contract.telemetry import Sample, SampleColumns


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
    with serving(url, OPTIMUS_LOG_LEVEL="warning") as service:
        port = service.client.base_url.port
        assert port is not None, "it listens on a port of its own"
        target = Target(port, service.pid, [_job(service.client, number) for number in range(options.workers)])
        report = measure(target, FORMS[options.form], options.samples, options.seconds)
        report["stored"] = sum(stored(url)[0].values())
    assert report["stored"] >= report["samples_acknowledged"], "an acknowledged sample is not stored"
    return report


def _job(client: httpx.Client, number: int) -> tuple[str, dict[str, str]]:
    """A tracked job with a first membership of one worker: where its telemetry goes, and the header with its token."""
    job_id = client.post("/v1/jobs", json={"name": f"run-{number}", "tracked": True}).raise_for_status().json()["id"]
    token = client.post(f"/v1/jobs/{job_id}/token").raise_for_status().json()["token"]
    own = {"Authorization": f"Bearer {token}"}
    report = {"epoch": 1, "generation": 1, "at": time.time(), "step": 0, "cause": "start"}
    report |= {"workers": ["w"], "servers": []}
    client.post(f"/v1/jobs/{job_id}/membership", json=report, headers=own).raise_for_status()
    return f"/v1/jobs/{job_id}/telemetry", own


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
