"""The service as a process: how it starts, refuses to start, and stops."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TextIO

import httpx
import pytest
from tests.forks import Forked, Forks
from tests.service.clusters.cluster_harness import wait_until

from optimus_scheduler.model import TaskPhase
from optimus_service.clusters.local import LocalCluster, LocalClusterOptions
from optimus_service.clusters.local.records import TaskRecord
from optimus_service.clusters.stop_all import stop_all_tasks
from optimus_service.process.data_directory import CannotStart
from optimus_service.server import prepare_database
from optimus_service.store.database.engine import create_engine_from_url, current_revision, head_revision
from optimus_service.store.errors import NewerDatabase

RUN = "from optimus_service.server import run; from optimus_service.settings import Settings; run(Settings())"
WAIT_SECONDS = 60.0
SERVICES = Forks("optimus_service.server", "optimus_service.store.database.engine")
"""What services are forked from: to import what one needs takes three seconds."""
atexit.register(SERVICES.close)


@dataclass
class Process:
    """A service that was forked, with what tests use of `subprocess.Popen`."""

    forked: Forked
    stderr: TextIO

    @property
    def pid(self) -> int:
        return self.forked.pid

    @property
    def returncode(self) -> int | None:
        return self.forked.returncode

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forked, name)

    def communicate(self, timeout: float) -> tuple[None, str]:
        """What it printed up to its end."""
        with self.stderr:
            printed = self.stderr.read()
        self.forked.wait(timeout)
        return None, printed


def forked(variables: dict[str, str], first: str = "") -> Process:
    reads, writes = os.pipe()
    try:
        process = SERVICES.start(
            [first], module="tests.service.server.served", variables=variables, out=writes, errors=writes
        )
    finally:
        os.close(writes)
    return Process(process, os.fdopen(reads))


def environment(directory: Path, **settings: str) -> dict[str, str]:
    ours = {"OPTIMUS_DATA_DIRECTORY": str(directory), "OPTIMUS_PORT": "0", "OPTIMUS_LOCAL_SLOTS": "4", **settings}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}, **ours}


@contextmanager
def serving(directory: Path, first: str = "", **settings: str) -> Iterator[tuple[Process, dict[str, Any]]]:
    """The running process and what its `service.json` says. `first`: code that it runs before."""
    process = forked(environment(directory, **settings), first)
    try:
        yield process, _wait_for_address(directory, process)
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)
        process.stderr.close()


@contextmanager
def interpreted(directory: Path, first: str, **settings: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The same in an interpreter of its own, which runs `first` before it imports anything."""
    command = [sys.executable, "-c", f"{first}\n{RUN}"]
    with subprocess.Popen(
        command, env=environment(directory, **settings), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, _wait_for_address(directory, process)
        finally:
            process.kill()


def _wait_for_address(directory: Path, process: subprocess.Popen[str] | Process) -> dict[str, Any]:
    pause = Event()
    for _ in range(int(WAIT_SECONDS * 20)):
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        path = directory / "service.json"
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        pause.wait(0.05)
    raise AssertionError("the service did not start")


def refusal(directory: Path, **settings: str) -> str:
    """What a service says that does not start."""
    process = forked(environment(directory, **settings))
    _, said = process.communicate(WAIT_SECONDS)
    assert process.returncode == 1
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_starts_tells_its_address_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, OPTIMUS_LOG_FORMAT="json") as (process, told):
        assert told["pid"] == process.pid
        with httpx.Client(base_url=told["url"], trust_env=False, timeout=30) as client:
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").json()["status"] == "ready"
            (node,) = client.get("/v1/nodes").json()["nodes"]
            assert node["capacity"]["cpu"] == 4
        process.send_signal(number)
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, printed
    lines = [json.loads(line) for line in printed.splitlines()]
    listening = next(line for line in lines if line["event"] == "listening")
    assert listening["url"] == told["url"]
    assert lines[-1]["event"] == "stopped"
    assert not (tmp_path / "service.json").exists()


# --- what becomes of tasks -------------------------------------------------------------------------------------------


@pytest.fixture
def patient_python(tmp_path: Path) -> Path:
    """An interpreter whose tasks do nothing but wait."""
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\ncase "$*" in *check_task* | *try_task*) exit 0 ;; esac\nexec sleep 1000\n')
    script.chmod(0o700)
    return script


def wait_for_tasks(cluster: LocalCluster, phase: TaskPhase) -> None:
    wait_until(f"three tasks are {phase}", lambda: [task.phase for task in cluster.tasks()] == [phase] * 3)


@pytest.mark.parametrize("stop_tasks", [False, True])
def test_tasks_outlive_the_service_unless_told_otherwise(
    tmp_path: Path, patient_python: Path, stop_tasks: bool
) -> None:
    settings = {"OPTIMUS_LOCAL_PYTHON": str(patient_python), "OPTIMUS_STOP_TASKS": str(stop_tasks)}
    data = tmp_path / "data"
    with serving(data, **settings) as (process, told):
        cluster = LocalCluster(LocalClusterOptions(data / "local"))
        with httpx.Client(base_url=told["url"], trust_env=False, timeout=30) as client:
            assert client.post("/v1/jobs", json={"name": "waits", "task": "mine:task"}).status_code == 201
        wait_for_tasks(cluster, TaskPhase.RUNNING)
        process.terminate()
        process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    if not stop_tasks:
        assert [task.phase for task in cluster.tasks()] == [TaskPhase.RUNNING] * 3
        stop_all_tasks(cluster)
    wait_for_tasks(cluster, TaskPhase.EXITED)


def test_long_polls_do_not_hold_up_the_stop(tmp_path: Path, patient_python: Path) -> None:
    settings = {"OPTIMUS_LOCAL_PYTHON": str(patient_python), "OPTIMUS_STOP_TASKS": "true"}
    with serving(tmp_path / "data", **settings) as (process, told), ThreadPoolExecutor() as threads:
        with httpx.Client(base_url=told["url"], trust_env=False, timeout=90) as client:
            job_id = client.post("/v1/jobs", json={"name": "waits", "task": "mine:task"}).json()["id"]
            cluster = LocalCluster(LocalClusterOptions(tmp_path / "data" / "local"))
            wait_for_tasks(cluster, TaskPhase.RUNNING)
            token = _token_of_a_task(tmp_path / "data")
            path = f"/v1/jobs/{job_id}/membership?after=1000&timeout_seconds=60"
            poll = threads.submit(client.get, path, headers={"Authorization": f"Bearer {token}"})
            metrics = client.get("/metrics").text
            assert "optimus_leader 1.0" in metrics
            process.terminate()
            assert poll.result(timeout=30).status_code == 200
        process.communicate(timeout=240)
    assert process.returncode == 0


def _token_of_a_task(data: Path) -> str:
    """Read from the memory of a task's process: it is nowhere else."""
    record = next(TaskRecord(path) for path in (data / "local" / "tasks").iterdir())
    supervisor = record.process()
    assert supervisor is not None
    variables = Path(f"/proc/{supervisor.pid}/environ").read_text().split("\0")
    return next(text.split("=", 1)[1] for text in variables if text.startswith("OPTIMUS_JOB_TOKEN="))


# --- refusals --------------------------------------------------------------------------------------------------------


def test_second_service_on_the_same_directory_refuses(tmp_path: Path) -> None:
    with serving(tmp_path):
        assert "another service is running on the data directory" in refusal(tmp_path)


def test_taken_port_is_named(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as (_, told):
        port = told["url"].rsplit(":", 1)[1]
        assert f"cannot listen on 127.0.0.1 port {port}" in refusal(tmp_path / "second", OPTIMUS_PORT=port)


def test_unknown_policy_is_named_with_the_known_ones(tmp_path: Path) -> None:
    message = refusal(tmp_path, OPTIMUS_POLICY="magic")
    assert "magic" in message
    assert "optimus" in message


def test_malformed_database_url_is_no_traceback(tmp_path: Path) -> None:
    message = refusal(tmp_path, OPTIMUS_DATABASE_URL="mysql://localhost/optimus")
    assert "not supported" in message
    assert "Traceback" not in message


def test_database_is_prepared_where_it_is_ours_alone(empty_database_url: str) -> None:
    if empty_database_url.startswith("sqlite"):
        prepare_database(empty_database_url)
        assert current_revision(empty_database_url) == head_revision()
        return
    with pytest.raises(CannotStart, match="optimus db upgrade"):
        prepare_database(empty_database_url)


def test_migrated_database_is_accepted(database_url: str) -> None:
    prepare_database(database_url)
    assert current_revision(database_url) == head_revision()


def test_a_database_of_a_newer_version_is_refused_in_words(database_url: str) -> None:
    engine = create_engine_from_url(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    try:
        with pytest.raises(NewerDatabase, match="a newer version has upgraded the database"):
            prepare_database(database_url)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{head_revision()}'")
        engine.dispose()


def test_a_newer_database_is_no_traceback(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optimus.db'}"
    prepare_database(url)
    engine = create_engine_from_url(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    message = refusal(tmp_path)
    assert "revision 9999" in message
    assert "Traceback" not in message
