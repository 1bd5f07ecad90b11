"""A job of real processes on loopback, and a stand-in for the service's five calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.forks import Forked, Forks, forks
from tests.workers.protocol.object_store import ObjectStore, ObjectStoreMissing, is_required

from optimus_contract.codec import read, write
from optimus_contract.telemetry import SampleColumns
from optimus_workers.wire.ports import reserve_port

HERE = Path(__file__).parent
TOKEN = "test-token"
PATIENCE_SECONDS = 150.0
"""Longest wait for anything; only a hang comes near it."""


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed hang up in the middle: no news."""


def _named(sample: dict[str, Any]) -> tuple[Any, ...]:
    """By which the service knows a sample that it was told before."""
    return sample["membership_epoch"], sample["rank"], sample["sequence"]


class FakeService:
    """Serves membership, profile, telemetry and result of one job, and remembers what it was told.

    `condition` guards everything and is notified of every change.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.wanted: dict[str, Any] = {"generation": 0, "directive": "run", "tasks": []}
        self.memberships: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.notes: list[dict[str, str]] = []
        self.silence: list[str] = []
        """What was told of tasks that do not answer."""
        self.usage: list[dict[str, Any]] = []
        """Of servers and coordinators, in order of arrival."""
        self.profile: dict[str, Any] | None = None
        self.planned_rates: dict[str, Any] | None = None
        self.result: dict[str, Any] | None = None
        self.refuses: Callable[[str, str, Any], str | None] = lambda *_: None
        """Why a call (method, path, body) is refused with 422, if it is."""
        self.n_refused: Counter[str] = Counter()
        """By the last part of the path."""
        self._server = QuietServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        with self.condition:
            self.wanted = {**self.wanted, "generation": 10**6}  # end the long polls
            self.condition.notify_all()

    def want(
        self,
        tasks: list[str],
        directive: str = "run",
        global_batch: int | None = None,
        limits: dict[str, Any] | None = None,
    ) -> None:
        listed = [{"name": name, "role": name.split("-")[1], "rank": int(name.split("-")[2])} for name in tasks]
        with self.condition:
            generation = self.wanted["generation"] + 1
            self.wanted = {"generation": generation, "directive": directive, "tasks": listed}
            if global_batch is not None:
                self.wanted["global_batch"] = global_batch
            if limits is not None:
                self.wanted["limits"] = limits
            self.condition.notify_all()

    def wait_for(self, what: str, condition: Callable[[], Any], timeout: float = PATIENCE_SECONDS) -> Any:
        """What `condition` gives once that is true. Asked anew at every call of the job, and every tenth of a second
        for what the service does not hear of."""
        give_up_at = time.monotonic() + timeout
        with self.condition:
            while time.monotonic() < give_up_at:
                if answer := condition():
                    return answer
                self.condition.wait(0.1)
        raise AssertionError(f"not within {timeout} s: {what}")

    @property
    def step(self) -> int:
        """The newest step that any worker told of."""
        return max((sample["step"] for sample in self.samples), default=0)

    def refuse(self, method: str, path: str, body: Any) -> str | None:
        with self.condition:
            refusal = self.refuses(method, path, body)
            if refusal is not None:
                self.n_refused[path.partition("?")[0].rpartition("/")[2]] += 1
                self.condition.notify_all()
            return refusal

    def answer(self, method: str, path: str, body: Any) -> Any:
        call = method, path.partition("?")[0].rpartition("/")[2]
        with self.condition:
            if call == ("GET", "membership"):
                after = int(path.partition("after=")[2].partition("&")[0])
                self.condition.wait_for(lambda: self.wanted["generation"] > after, 5)
                known = self.memberships[-1]["epoch"] if self.memberships else 0
                return {"membership_epoch": known, **self.wanted}
            if call == ("POST", "membership"):
                self.memberships.append(body)
            elif call == ("POST", "telemetry"):
                if "columns" in body:
                    columns = read(SampleColumns, body["columns"])
                    told = [write(sample, without_none=True) for sample in columns.samples()]
                    known = {_named(each) for each in self.samples}  # what is sent again is counted once
                    self.samples.extend(each for each in told if _named(each) not in known)
                self.usage.extend(body.get("tasks", ()))
                self.notes.extend(body.get("notes", ()))
                self.silence.extend([body["silence"]] if "silence" in body else [])
            elif call == ("PUT", "profile"):
                self.profile = body
            elif call == ("PUT", "learning-rates"):
                self.planned_rates = body
            elif call == ("POST", "result"):
                self.result = body
            self.condition.notify_all()
            return {"accepted": 0, "ignored": []}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                assert self.headers["Authorization"] == f"Bearer {TOKEN}"
                refusal = service.refuse(self.command, self.path, body)
                answer = service.answer(self.command, self.path, body) if refusal is None else {"title": refusal}
                content = json.dumps(answer).encode()
                self.send_response(200 if refusal is None else 422)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = _serve  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@dataclass(frozen=True)
class Host:
    """Where a task runs."""

    prefix: tuple[str, ...] = ()
    """What its command line begins with."""
    coordinator: str = "127.0.0.1"
    """The coordinator's address, seen from there; the coordinator binds its own."""


@dataclass
class Job:
    """The processes of one job."""

    directory: Path
    service: FakeService
    spec: dict[str, Any]
    port: int
    processes: dict[str, subprocess.Popen[bytes] | Forked] = field(default_factory=dict)
    n_coordinators: int = 0
    hosts: dict[str, Host] = field(default_factory=dict)
    """Tasks that run elsewhere than here."""
    workers: Forks | None = None
    """What workers are forked from; None: each is an interpreter of its own, as in a cluster."""
    attempt: int = 0
    """Which start from a checkpoint this is."""
    impatient_agents: tuple[str, ...] = ()
    """How agents of scripts are run that have another lease."""

    def start(self, *names: str, command: Sequence[str] = ()) -> None:
        """Start tasks by name, `job-ROLE-RANK-INCARNATION`."""
        for name in names:
            _, role, rank, _ = name.split("-")
            host = self.hosts.get(name, Host())
            program = command or self.impatient_agents or ("-m", "optimus_workers")
            environment = {key: value for key, value in os.environ.items() if not key.startswith("OPTIMUS_")}
            environment |= {
                "OPTIMUS_SERVICE_URL": self.service.url,
                "OPTIMUS_JOB_ID": "job",
                "OPTIMUS_JOB_TOKEN": TOKEN,
                "OPTIMUS_TASK_NAME": name,
                "OPTIMUS_TASK_RANK": rank,
                "OPTIMUS_COORDINATOR_ADDRESS": f"{host.coordinator}:{self.port}",
                "OPTIMUS_JOB_DIRECTORY": str(self.directory),
                "OPTIMUS_JOB_SPEC": json.dumps(self.spec),
                "OPTIMUS_ATTEMPT": str(self.attempt),
            }
            with (self.directory / f"{name}.log").open("ab") as log:
                imports_torch = role == "worker" and self.spec.get("architecture") != "script"
                if imports_torch and self.workers is not None and not (host.prefix or command):
                    self.processes[name] = self.workers.start(
                        [role], module="optimus_workers", variables=environment, out=log.fileno(), errors=log.fileno()
                    )
                    continue
                self.processes[name] = subprocess.Popen(
                    [*host.prefix, sys.executable, *program, role],
                    env=environment, stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip

    def start_coordinator(self, lease_seconds: float | None = None) -> str:
        """Start the next incarnation, maybe one that is less patient with tasks that say nothing."""
        name = f"job-coordinator-0-{self.n_coordinators}"
        self.n_coordinators += 1
        self.start(name, command=("-m", "optimus_workers") if lease_seconds is None else _impatient(lease_seconds))
        return name

    def scale(self, *names: str) -> None:
        """Want exactly these tasks, and start those that do not run."""
        self.service.want(list(names))
        self.start(*(name for name in names if name not in self.processes))

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(60)

    def exit_code(self, name: str) -> int:
        return self.processes[name].wait(PATIENCE_SECONDS)

    def wait_for_size(self, workers: int, servers: int, *, after_epoch: int = 0) -> dict[str, Any]:
        """The first membership of that size that was reported with a higher epoch."""

        def found() -> dict[str, Any] | None:
            for report in self.service.memberships:
                size = len(report["workers"]), len(report["servers"])
                if report["epoch"] > after_epoch and size == (workers, servers):
                    return report
            return None

        report: dict[str, Any] = self.wait_for(f"{workers} workers, {servers} servers", found)
        return report

    def wait_for_restart(self, workers: int, servers: int, *, after_epoch: int) -> dict[str, Any]:
        """The membership of that size that follows the restart of a coordinator, which cost no step.

        Who finds the new coordinator later than the others joins the membership after that.
        """
        report = self.wait_for_size(workers, servers, after_epoch=after_epoch)
        since = [each for each in self.service.memberships if after_epoch < each["epoch"] <= report["epoch"]]
        assert since[0]["cause"] == "coordinator_restart"
        assert {each["cause"] for each in since[1:]} <= {"start", "rescale"}
        assert all(each["lost_steps"] == 0 for each in since)
        return report

    def wait_for_step(self, step: int) -> None:
        self.wait_for(f"step {step}", lambda: self.service.step >= step)

    def wait_for_result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.wait_for("the result", lambda: self.service.result)
        return result

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        try:
            return self.service.wait_for(what, condition)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def finish(self) -> dict[str, Any]:
        """Train ten more steps, then finish as if the job had converged; the result."""
        epoch = self.service.memberships[-1]["epoch"]
        self.wait_for(
            "ten more steps",
            lambda: any(s["step"] >= self.service.memberships[-1]["step"] + 10 for s in self.service.samples
                        if s["membership_epoch"] >= epoch),
        )  # fmt: skip
        self.service.want([task["name"] for task in self.service.wanted["tasks"]], "finish")
        return self.wait_for_result()

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-6000:]}" for path in sorted(self.directory.glob("*.log")))

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(60)


def _impatient(lease_seconds: float) -> tuple[str, ...]:
    """Run the coordinator, or the agent of a script, with another lease."""
    program = (
        "import runpy, optimus_workers.coordinator.shell as shell, optimus_workers.script.processes as processes;"
        f"shell.LEASE_SECONDS = {lease_seconds}; shell.PING_SECONDS = {lease_seconds / 6};"
        f"processes.LEASE_SECONDS = {lease_seconds * 2 / 3};"
        "runpy.run_module('optimus_workers', run_name='__main__')"
    )
    return "-c", program


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of small networks that share two cores are slowest with a thread for each core."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def forked_workers() -> Iterator[Forks]:
    with forks("optimus_workers.worker.run", "optimus_workers.worker.loop", "optimus_workers.allreduce.loop") as found:
        yield found


@pytest.fixture
def make_job(tmp_path: Path, forked_workers: Forks) -> Iterator[Callable[..., Job]]:
    """`make_job(task_args, **spec)`: a job whose coordinator runs; everything is gone after the test."""
    jobs: list[Job] = []

    def make(
        task_args: dict[str, Any] | None = None,
        *,
        lease_seconds: float | None = None,
        hosts: dict[str, Host] | None = None,
        **spec: Any,
    ) -> Job:
        whole = {
            "task": "tiny_training:make",
            "task_args": task_args or {},
            "working_directory": str(HERE),
            "mode": "sync",
            "seed": 5,
            "checkpoint_seconds": 3600.0,
            "convergence": {},
            # Many tests compare bit for bit with one process on a CPU.
            "device": os.environ.get("OPTIMUS_TEST_DEVICE", "cpu"),
        } | spec
        job = Job(tmp_path, FakeService(), whole, reserve_port("127.0.0.1"), hosts=hosts or {}, workers=forked_workers)
        jobs.append(job)
        if lease_seconds is not None and "command" in spec:
            job.impatient_agents = _impatient(lease_seconds)
        job.start_coordinator(lease_seconds)
        return job

    yield make
    for job in jobs:
        job.stop()
        job.service.close()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A store that speaks S3, in the environment of this process and of the tasks that it starts."""
    try:
        store = ObjectStore()
    except ObjectStoreMissing as missing:
        if is_required():
            pytest.fail(f"OPTIMUS_TEST_REQUIRE_S3=1, but it {missing}")
        pytest.skip(str(missing))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
    store.close()


def worker(rank: int, incarnation: int = 0) -> str:
    return f"job-worker-{rank}-{incarnation}"


def server(rank: int, incarnation: int = 0) -> str:
    return f"job-server-{rank}-{incarnation}"
