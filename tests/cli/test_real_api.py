"""The command line against the service's own API (over HTTP, with a cluster in memory): do both mean the same?"""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs
from tests.cli.conftest import Optimus
from tests.contract.accepted import FILES, FLAGS, REQUESTS, STORED, says

from optimus_scheduler.model import Node, Resources
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.repository import Repository

START_SECONDS = 60.0


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a served API on an empty database."""
    settings = Settings(
        data_directory=tmp_path_factory.mktemp("data"), price_per_core_hour=0.1, price_per_gpu_hour={"a100": 1.0}
    )
    upgrade(settings.url)
    repository = Repository(create_engine_from_url(settings.url))
    cluster = FakeCluster(
        [
            Node("local-0", Resources(cpu=4.0, memory_bytes=2**33)),
            Node("gpu-0", Resources(cpu=64.0, memory_bytes=2**38, gpus={"a100": 8})),
        ]
    )
    cluster.broken_tasks["mine:broken"] = "mine has no attribute broken"
    services = Services(
        settings=settings,
        repository=repository,
        cluster=cluster,
        long_polls=LongPolls(repository.wanted.generations),
        job_tokens=JobTokens(b"secret"),
        version="0.1.0",
    )
    server = _Server(uvicorn.Config(create_app(services), log_config=None, timeout_graceful_shutdown=1))
    # The service's log lines would mix with what the command line prints: here both are one process.
    with capture_logs(), socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert server.up.wait(START_SECONDS)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(START_SECONDS)
            repository.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@pytest.fixture
def connected(api: str, optimus: Optimus, monkeypatch: pytest.MonkeyPatch) -> Optimus:
    monkeypatch.setenv("OPTIMUS_URL", api)
    return optimus


def test_a_jobs_way_through_the_commands(connected: Optimus) -> None:
    flags = ["--task", "pkg.net:net", "--name", "alpha", "--workers-max", "2", "--max-epochs", "3"]
    submitted = connected("submit", *flags)
    assert submitted.exit_code == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    listed = json.loads(connected("list", "--state", "queued", "--name", "alph", "--json").stdout)
    assert [job["id"] for job in listed["jobs"]] == [job_id]
    for states in (["queued", "failed"], ["failed", "queued"]):
        flags = [flag for state in states for flag in ("--state", state)]
        assert job_id in connected("list", *flags, "--name", "alpha").stdout
    described = json.loads(connected("describe", "alpha", "--json").stdout)
    assert described["spec"]["convergence"]["max_epochs"] == 3
    assert described["events"]
    for command in ("describe", "explain", "logs", "predict"):
        for arguments in ([command, "alpha"], [command, job_id[:-2], "--json"]):
            done = connected(*arguments)
            assert done.exit_code == 0, done.stderr
    assert "local-0" in connected("nodes").stdout
    assert connected("cancel", "alpha").exit_code == 0
    watched = connected("watch", "alpha", "--json")
    assert watched.exit_code == 1, "a cancelled job did not succeed"
    again = connected("cancel", "alpha")
    assert again.exit_code == 1
    assert "already" in again.stderr


def test_the_same_key_gives_the_same_job(connected: Optimus) -> None:
    arguments = ["submit", "--task", "pkg.net:net", "--name", "once", "--idempotency-key", "k1"]
    assert connected(*arguments).stdout == connected(*arguments).stdout
    other = connected(*arguments, "--seed", "5")
    assert other.exit_code == 1
    assert "key" in other.stderr


def test_flags_reach_the_job(connected: Optimus) -> None:
    flags = ["--architecture", "allreduce", "--compression", "powersgd", "--no-overlap", "--workers-max", "2"]
    job = json.loads(connected("submit", "--task", "pkg.net:net", "--name", "ring", *flags, "--json").stdout)
    spec = job["spec"]
    assert (spec["architecture"], spec["compression"], spec["overlap"]) == ("allreduce", "powersgd", False)
    assert (spec["servers"]["min"], spec["servers"]["max"]) == (0, 0)
    refused = connected("submit", "--task", "pkg.net:net", "--architecture", "allreduce", "--servers-max", "2")
    assert refused.exit_code == 2
    assert "an all-reduce job has no servers" in refused.stderr
    for flags, said in (
        (["--workers-min", "40"], "--workers-min: min (40) must not be above max (16, the default)"),
        (["--servers-min", "3", "--servers-max", "2"], "--servers-min and --servers-max: min (3) must not be above"),
    ):
        refused = connected("submit", "--task", "pkg.net:net", *flags)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("task: a:b\nworkers:\n  max: -3\n", "3:8", "workers.max"),
        ("task: a:b\nworkers:\n  min: 5\n  max: 2\n", "2:1", "min (5) must not be above max (2)"),
        ("task: a:b\nworkers:\n  resources: {cpu: 1, gpuz: 2}\n", "3:29", "unknown field"),
        ("task: a:b\nnmae: x\n", "2:7", "did you mean name?"),
        ("name: x\ntsak: a:b\n", "2:7", "did you mean task?"),
        ("task: nonsense\n", "1:7", "task"),
        ("name: x\ntask: mine:broken\n", "2:7", "mine has no attribute broken"),
        ("task: a:b\nworkers:\n  min: 100\n  max: 100\n", "3:8", "workers"),
        ("task: a:b\nconvergence:\n  loss_decrease:\n    below: 2\n", "4:12", "convergence.loss_decrease.below"),
        ("task: a:b\nconvergence: {}\n", "2:1", "at least one"),
        ("task: a:b\nenvironment:\n  OPTIMUS_X: 'y'\n", "2:1", "reserved"),
    ],
)
def test_what_the_service_refuses_is_pointed_at(
    connected: Optimus, tmp_path: Path, text: str, place: str, message: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    done = connected("submit", str(file))
    assert done.exit_code == 2, done.output
    assert f"{file}:{place}: " in done.stderr
    assert message in done.stderr


def test_json_files_are_pointed_at_as_well(connected: Optimus, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{\n\t"task": "a:b",\n\t"priority": 0\n}\n')
    done = connected("submit", str(file))
    assert done.exit_code == 2
    assert f"{file}:3:14: priority: " in done.stderr


def test_bad_queries_are_bad_input(connected: Optimus) -> None:
    connected("submit", "--task", "pkg.net:net", "--name", "query")
    done = connected("predict", "query", "--workers", "1-1024", "--servers", "1-1024")
    assert done.exit_code == 2
    assert "at most" in done.stderr


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_body_of_the_last_release_is_accepted(api: str, name: str) -> None:
    answer = httpx.post(f"{api}/v1/jobs", json=REQUESTS[name], timeout=60)
    assert answer.status_code == 201, answer.text
    spec = httpx.get(f"{api}/v1/jobs/{answer.json()['id']}", timeout=60).json()["spec"]
    stored = STORED["everything" if name == "all fields" else name]
    before = {**stored, "deadline": REQUESTS[name].get("deadline")}
    del before["environment"]  # its values are not told
    assert [key for key, each in before.items() if not says(spec[key], each)] == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_job_file_of_the_last_release_is_accepted(connected: Optimus, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.yaml").write_text(FILES[name], encoding="utf-8")
    done = connected("submit", str(tmp_path / f"{name}.yaml"), "--json")
    assert done.exit_code == 0, done.stderr
    assert says(json.loads(done.stdout)["spec"], STORED.get(name, {}))


@pytest.mark.parametrize("flags", FLAGS)
def test_flags_of_the_last_release_are_accepted(connected: Optimus, flags: str) -> None:
    done = connected("submit", *shlex.split(flags), "--json")
    assert done.exit_code == 0, done.stderr
