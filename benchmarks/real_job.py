"""A whole job on this machine for benchmarks: its own processes as in production, and a stand-in for the service.

Needs nothing but the package and its extra `worker`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from optimus_contract.codec import read, write
from optimus_contract.telemetry import SampleColumns

TOKEN = "benchmark"
POLL_SECONDS = 5.0


class Service:
    """Answers the calls of one job's tasks, and keeps what it is told. `changed` guards it."""

    def __init__(self, tasks: list[dict[str, Any]]) -> None:
        self.changed = threading.Condition()
        self.samples: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self._wanted = {"generation": 1, "directive": "run", "tasks": tasks}
        self._closed = False
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                call = self.path.partition("?")[0].rpartition("/")[2]
                content = json.dumps(service.answer(self.command, call, self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = _serve  # noqa: N815

            def log_message(self, *_: Any) -> None:
                """Not of interest."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, method: str, call: str, path: str, body: bytes) -> dict[str, Any]:
        with self.changed:
            if (method, call) == ("GET", "membership"):
                after = int(path.partition("after=")[2].partition("&")[0] or 0)
                self.changed.wait_for(lambda: self._closed or after < 1, POLL_SECONDS)
                return self._wanted
            if call == "telemetry":
                columns = json.loads(body).get("columns")
                if columns is not None:
                    self.samples.extend(write(sample) for sample in read(SampleColumns, columns).samples())
            elif call == "result":
                self.result = json.loads(body)
            self.changed.notify_all()
        return {"accepted": 0, "ignored": []}

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are ended hang up in the middle: no news."""


class RealJob:
    """Coordinator, servers and workers of one job, from entering the context on; ended with it."""

    def __init__(
        self, spec: dict[str, Any], workers: int, servers: int, environment: dict[str, str] | None = None
    ) -> None:
        """`spec`: as submitted; `environment`: more variables of all tasks."""
        defaults = {"mode": "sync", "seed": 1, "checkpoint_seconds": 86400.0, "convergence": {}}
        self._spec = defaults | spec
        self._tasks = [
            {"name": f"job-{role}-{rank}-0", "role": role, "rank": rank}
            for role, count in (("server", servers), ("worker", workers))
            for rank in range(count)
        ]
        self._environment = environment or {}
        self._folder = tempfile.TemporaryDirectory(prefix="optimus-benchmark-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.service = Service(self._tasks)

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        coordinator = {"name": "job-coordinator-0-0", "role": "coordinator", "rank": 0}
        for task in [coordinator, *self._tasks]:
            self._processes.append(self._start(task, port))
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.service.close()
        self._folder.cleanup()

    def _start(self, task: dict[str, Any], port: int) -> subprocess.Popen[bytes]:
        variables = {key: value for key, value in os.environ.items() if not key.startswith("OPTIMUS_")}
        variables |= {
            "OPTIMUS_SERVICE_URL": self.service.url,
            "OPTIMUS_JOB_ID": "job",
            "OPTIMUS_JOB_TOKEN": TOKEN,
            "OPTIMUS_TASK_NAME": task["name"],
            "OPTIMUS_TASK_RANK": str(task["rank"]),
            "OPTIMUS_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "OPTIMUS_JOB_DIRECTORY": self._folder.name,
            "OPTIMUS_JOB_SPEC": json.dumps(self._spec),
        }
        with self._log(task["name"]).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "optimus_workers", task["role"]],
                env=variables | self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _log(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.log"

    def wait_for_result(self, timeout: float) -> dict[str, Any]:
        """What came of it. Raises `RuntimeError` with the ends of the logs when it failed or took too long."""
        with self.service.changed:
            self.service.changed.wait_for(lambda: self.service.result is not None, timeout)
            result = self.service.result
        if result is None or result.get("outcome") != "succeeded":
            logs = [f"== {path.name}\n{path.read_text()[-1500:]}" for path in Path(self._folder.name).glob("*.log")]
            raise RuntimeError(f"the job ended with {result}\n" + "\n".join(logs))
        return result

    def wait_for_step(self, step: int, timeout: float) -> None:
        """Until a worker has told of it. Raises `RuntimeError` when that took too long."""

        def reached() -> bool:
            return self.service.result is not None or any(each["step"] >= step for each in self.service.samples)

        with self.service.changed:
            self.service.changed.wait_for(reached, timeout)
            if any(each["step"] >= step for each in self.service.samples):
                return
        self.wait_for_result(0)
        raise RuntimeError(f"the job ended before step {step}")

    def steps_per_second(self, after_step: int) -> float:
        """Of the steps behind `after_step`, by the clock of worker 0."""
        with self.service.changed:
            own = sorted((each["step"], each["at"]) for each in self.service.samples if each["rank"] == 0)
        later = [(step, at) for step, at in own if step >= after_step]
        (first, begun_at), (last, ended_at) = later[0], later[-1]
        if last <= first:
            raise RuntimeError(f"too few samples behind step {after_step}: {own}")
        return float((last - first) / (ended_at - begun_at))

    def seconds_per_step(self, after_step: int) -> dict[str, float]:
        """Mean seconds that the workers' steps behind `after_step` spent on each part."""
        parts = ("data_seconds", "compute_seconds", "push_seconds", "wait_seconds", "pull_seconds")
        with self.service.changed:
            later = [each for each in self.service.samples if each["step"] - each["n_steps"] >= after_step]
        n_steps = sum(each["n_steps"] for each in later)
        return {part: sum(each[part] for each in later) / max(1, n_steps) for part in parts}
