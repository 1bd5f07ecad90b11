"""A real service on SQLite with real training processes, started and stopped by the tests."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx
from tests.forks import Forked, Forks

from optimus_service.store.samples.counting import BLOCK

OPTIMUS = [sys.executable, "-m", "optimus_cli"]
TASKS = Path(__file__).parents[1] / "tasks"
"""Training code that only tests use, for a job's `working_directory`."""
PATIENCE_SECONDS = 240.0
"""Longest wait for anything: the tests wait on conditions, this only bounds a hang."""


SERVICES = Forks(
    "optimus_service.server",
    "optimus_service.store.database.engine",
    "optimus_cli.commands.serve",
    "scipy.optimize",
    "scipy.special",
)
"""What services are forked from: to import what one needs takes two seconds."""
atexit.register(SERVICES.close)


def wait_until(what: str, condition: Callable[[], Any], timeout_seconds: float = PATIENCE_SECONDS) -> Any:
    """Ask `condition` every fifth of a second until it gives something true; that is returned."""
    pause = Event()
    for _ in range(int(timeout_seconds * 5)):
        answer = condition()
        if answer:
            return answer
        pause.wait(0.2)
    raise AssertionError(f"after {timeout_seconds:.0f} s still not true: {what}")


@dataclass
class Service:
    """`optimus serve` in a subprocess, restartable on the same data directory and port."""

    directory: Path
    options: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """`OPTIMUS_...` variables."""
    port: int = 0
    process: Forked | None = None
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30, trust_env=False))

    @property
    def address_file(self) -> Path:
        return self.directory / "service.json"

    def start(self) -> None:
        self.address_file.unlink(missing_ok=True)
        arguments = ["serve", "--port", str(self.port), "--data-directory", str(self.directory), *self.options]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")
        } | self.settings
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "service.out").open("ab") as log:
            self.process = SERVICES.start(
                arguments, module="optimus_cli", variables=environment, out=log.fileno(), errors=log.fileno()
            )
        url = wait_until("the service is up", self._address)
        self.port = int(url.rsplit(":", 1)[1])
        self.client.base_url = httpx.URL(url)
        wait_until("the service is ready", self._ready)

    def _address(self) -> str | None:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "service.out").read_text()
        if not self.address_file.exists():
            return None
        return str(json.loads(self.address_file.read_text())["url"])

    def _ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """As a machine running out of memory would: no goodbye."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        """End the service and every process that it started."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(60)
        for pid in self.processes().values():
            os.kill(pid, signal.SIGKILL)
        wait_until("no task is left", lambda: not self.processes(), 60)
        self.client.close()

    def get(self, path: str, **params: Any) -> Any:
        answer = self.client.get(path, params=params)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()

    def submit(self, spec: dict[str, Any]) -> str:
        answer = self.client.post("/v1/jobs", json=spec)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.get(f"/v1/jobs/{job_id}")
        return job

    def wait_for_end(self, job_id: str) -> dict[str, Any]:
        """The job once it is final; when it did not succeed, with its story in the failure."""
        job: dict[str, Any] = wait_until(
            f"{job_id} has ended", lambda: (shown := self.job(job_id))["finished_at"] and shown
        )
        assert job["state"] == "succeeded", json.dumps(
            {"job": job, "events": self.get(f"/v1/jobs/{job_id}/events", limit=200)}, indent=1
        )
        return job

    def processes(self) -> dict[str, int]:
        """Task name → pid of every training process of this service, read from the kernel. Of what others run on this
        machine nothing is read but to which process group it belongs."""
        groups = {
            path.parent.name: path.read_text().split(" ", 1)[0] for path in self.directory.glob("*/tasks/*/process")
        }
        names = {int(pid): name for name, pid in groups.items() if pid}
        found: dict[str, int] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                name = names.get(os.getpgid(int(entry.name)))
                command = (entry / "cmdline").read_text().split("\0") if name is not None else []
            except (OSError, UnicodeDecodeError):
                continue
            if name is not None and "optimus_workers" in command:
                found[name] = int(entry.name)
        return found

    def sequences(self, job_id: str) -> dict[tuple[int, int], list[int]]:
        """(membership epoch, rank) → sequence numbers of the samples that the database has counted, sorted."""
        found: dict[tuple[int, int], list[int]] = {}
        with closing(sqlite3.connect(f"file:{self.directory / 'optimus.db'}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "select membership_epoch, rank, number, bits from sample_blocks where job_id = ? order by 1, 2, 3",
                (job_id,),
            )
            for epoch, rank, number, stored in rows:
                bits = int.from_bytes(stored, "little")
                counted = [BLOCK * number + bit for bit in range(bits.bit_length()) if bits >> bit & 1]
                found.setdefault((epoch, rank), []).extend(counted)
        return found
