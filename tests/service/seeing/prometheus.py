"""A real Prometheus (Debian package `prometheus`) that scrapes a service under test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
import yaml

from optimus_workers.wire.ports import reserve_port

PATIENCE_SECONDS = 90.0
"""Bounds a hang; the tests wait on conditions."""


def need(program: str) -> str:
    """The path of a program of that package; skips where it is missing, unless OPTIMUS_TEST_REQUIRE_PROMETHEUS=1."""
    found = shutil.which(program)
    if found is None:
        missing = f"{program} is not installed (Debian package prometheus)"
        if os.environ.get("OPTIMUS_TEST_REQUIRE_PROMETHEUS") == "1":
            pytest.fail(f"OPTIMUS_TEST_REQUIRE_PROMETHEUS=1, but {missing}")
        pytest.skip(missing)
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    client: httpx.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that the expression gives now; fails when it is no expression."""
        answer = self.client.get("/api/v1/query", params={"query": expression})
        document = answer.json()
        assert document["status"] == "success", (expression, document.get("error"))
        found: list[dict[str, Any]] = document["data"]["result"]
        return found

    def wait_for(self, expression: str, before: Callable[[], None] = lambda: None) -> None:
        """Until the expression gives something. `before`: is called each time before it is asked for."""

        def gives_something() -> bool:
            before()
            return bool(self.query(expression))

        _wait_for(expression, gives_something)

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return self.client.get("/-/ready").is_success
        except httpx.TransportError:
            return False


def _wait_for(what: str, condition: Callable[[], bool]) -> None:
    pause = Event()
    for _ in range(int(PATIENCE_SECONDS * 2)):
        if condition():
            return
        pause.wait(0.5)
    raise AssertionError(f"after {PATIENCE_SECONDS:.0f} s still not: {what}")


@contextmanager
def prometheus(directory: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """Scrapes `target` (host:port) every second."""
    program = need("prometheus")
    directory.mkdir(parents=True, exist_ok=True)
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "optimus", "static_configs": [{"targets": [target]}]}],
    }
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    address = f"127.0.0.1:{reserve_port('127.0.0.1')}"
    command = [
        program,
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=30) as client:
            running = Prometheus(client)
            _wait_for("Prometheus is ready", running.is_ready)
            yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def metric_names(expression: str) -> set[str]:
    """The metrics of ours that an expression reads."""
    return set(re.findall(r"\boptimus_[a-z_]+", expression))
