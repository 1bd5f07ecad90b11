"""MLflow's tracking server as `benchmarks.telemetry` measures it: its own REST API, `runs/log-batch`."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.telemetry_clients import Target

from optimus_workers.wire.ports import reserve_port

START_SECONDS = 180.0
_API = "/api/2.0/mlflow"


@contextmanager
def serving(python: Path, folder: Path, n_runs: int) -> Iterator[Target]:
    """The server of that Python's MLflow, with a run for each client. One process serves, as one of ours does."""
    port = reserve_port("127.0.0.1")
    store = ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder)]
    command = [str(python), "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *store]
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _wait_until_up(process, port)
            experiment = _call(port, "/experiments/create", {"name": "telemetry"})["experiment_id"]
            runs = [_call(port, "/runs/create", {"experiment_id": experiment}) for _ in range(n_runs)]
            extra = [{"run_id": each["run"]["info"]["run_id"]} for each in runs]
            yield Target(port, process.pid, [(f"{_API}/runs/log-batch", {})] * n_runs, extra)
        finally:
            process.terminate()
            process.wait()


def body(first: int, n_samples: int) -> Any:
    """So many values of one metric."""
    now = int(1000 * time.time())
    steps = range(first, first + n_samples)
    return {"metrics": [{"key": "loss", "value": 1 / (step + 1), "timestamp": now, "step": step} for step in steps]}


def _wait_until_up(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "MLflow's server ended by itself"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise TimeoutError("MLflow's server did not start")


def _call(port: int, path: str, document: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{_API}{path}",
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())
