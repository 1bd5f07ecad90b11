"""The demo from an empty directory to a summary; whatever happens, nothing that it started stays.

Its jobs are three networks that learn scikit-learn's handwritten digits and arrive one after the other; or, with
scripts, two trainings that know nothing of Optimus beside one of these.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from optimus_cli import output, watching
from optimus_cli.client import Client, is_final
from optimus_cli.demo import summary as summaries
from optimus_cli.demo.processes import LocalService, end_processes
from optimus_cli.errors import BadInput, DemoFailed, Unreachable
from optimus_cli.show import plots
from optimus_cli.show.live import Frame

# --- the jobs of the demo --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job and when it is submitted, in seconds after the demo's begin."""

    at_seconds: float
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.spec["name"])


LIMITS: dict[str, Any] = {
    "workers": {"min": 1, "max": 4},
    "servers": {"min": 1, "max": 3},
    "checkpoint_seconds": 20,
}
"""Half of the slots for one job's workers: alone it cannot use everything, together they compete."""


def arrivals() -> Sequence[Arrival]:
    """The demo's jobs by time of arrival: different networks, modes and convergence rules."""
    return (
        _arrival(
            0.0,
            "mlp",
            "sync",
            {"loss_decrease": {"below": 0.005}, "max_epochs": 400},
            learning_rate=0.005,
            momentum=0.0,
        ),
        _arrival(30.0, "cnn", "async", {"target_loss": 0.045, "max_epochs": 200}),
        _arrival(
            60.0, "resnet", "sync", {"loss_decrease": {"below": 0.003, "relative_to": "maximum"}, "max_epochs": 80}
        ),
    )


SCRIPTS = Path(__file__).with_name("scripts")
NEEDED = ("torch", "transformers", "accelerate")
"""What the scripts import; the Trainer of transformers needs accelerate."""


def check_scripts_can_run() -> None:
    """Raise `BadInput` if a library that the demo's scripts import is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise BadInput(f"the demo's scripts import {', '.join(missing)}: pip install {' '.join(missing)}")


def script_arrivals(directory: Path) -> Sequence[Arrival]:
    """The demo's jobs with scripts; these are copied to `directory`, and run there as their owner would run them."""
    shutil.copytree(SCRIPTS, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return (
        _script(0.0, "hugging-face", directory, "hugging_face.py", "--output-dir", "hugging-face-out"),
        _script(15.0, "ddp", directory, "ddp.py", "--snapshot", "snapshot.pt"),
        _arrival(
            30.0,
            "mlp",
            "sync",
            {"loss_decrease": {"below": 0.01}, "max_epochs": 150},
            learning_rate=0.005,
            momentum=0.0,
        ),
    )


def _script(at_seconds: float, name: str, directory: Path, *words: str) -> Arrival:
    spec = {
        "name": name,
        "command": ["torchrun", *words],
        "working_directory": str(directory),
        "python": sys.executable,
        "resumes": True,
        "workers": {"min": 1, "max": 4},
    }
    return Arrival(at_seconds, spec)


def _arrival(at_seconds: float, network: str, mode: str, convergence: dict[str, Any], **task_args: float) -> Arrival:
    spec = {
        "name": f"digits-{network}",
        "task": f"optimus_workers.zoo.digits:{network}",
        "task_args": task_args,
        "mode": mode,
        "convergence": convergence,
        **LIMITS,
    }
    return Arrival(at_seconds, spec)


# --- its run ---------------------------------------------------------------------------------------------------------

MAX_SECONDS = 1200.0
"""Four times what the demo takes on two cores; more means that something hangs."""
MARKER = ".made-by-optimus-demo"
"""In directories that the demo may empty."""
KEEP_RUNNING_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What `optimus demo` was asked for."""

    directory: Path
    slots: int
    port: int
    round_seconds: float
    keep_running: bool
    as_json: bool
    scripts: bool = False
    """Trainings that know nothing of Optimus instead of networks of ours."""


def run(options: Options) -> dict[str, Any]:
    """Run the demo; the summary, which is also written to `summary.json`. Raises `DemoFailed`."""
    if options.scripts:
        check_scripts_can_run()
    directory = options.directory.resolve()
    _make_directory(directory)
    with _only_one(directory), _interrupted_by_signals():
        data_directory = _fresh_data_directory(directory)
        service = LocalService(data_directory, directory / "service.log", _service_options(options))
        try:
            return _conduct(service, options, directory)
        finally:
            with _uninterrupted():
                service.stop()
            output.say("The service and its tasks have ended.")


def _service_options(options: Options) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(options.port), "--slots", str(options.slots)),
        *("--round-seconds", str(options.round_seconds)),
    ]


def _conduct(service: LocalService, options: Options, directory: Path) -> dict[str, Any]:
    url = service.start()
    output.say(f"The service runs at {url} (log: {service.log}).")
    with Client(url, None) as client:
        display = watching.display(output.error_console() if options.as_json else output.console(), as_json=False)
        try:
            coming = script_arrivals(service.directory / "scripts") if options.scripts else arrivals()
            jobs = watching.follow(_frames(service, client, coming), display)
            records = [_record(client, job["id"]) for job in jobs]
            cluster = client.cluster()
        except Unreachable as error:
            service.check()
            raise DemoFailed(f"{error}\nThe end of {service.log}:\n{service.log_tail()}") from error
    summary = summaries.summarize(records, cluster["policy"], cluster["capacity"]["cpu"], cluster["version"])
    (directory / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    plots.save(plots.whole_run(summaries.runs(records), cluster["capacity"]["cpu"]), directory / "demo.png")
    _report(summary, directory, as_json=options.as_json)
    if options.keep_running:
        _keep_running(service, url)
    return summary


def _frames(service: LocalService, client: Client, coming: Sequence[Arrival]) -> Iterator[Frame]:
    """Submit each job when its time comes; a frame per second until all have ended."""
    begin = time.monotonic()
    waiting = list(coming)
    job_ids: list[str] = []
    while (elapsed := time.monotonic() - begin) < MAX_SECONDS:
        service.check()
        while waiting and waiting[0].at_seconds <= elapsed:
            job_ids.append(client.submit(waiting.pop(0).spec, str(uuid.uuid4()))["id"])
        jobs = [client.job(job_id) for job_id in job_ids]
        cluster = client.cluster()
        elapsed = time.monotonic() - begin  # a submission takes seconds: its task is tried
        expected = [f"{job.name} arrives in {max(job.at_seconds - elapsed, 0.0):.0f} s" for job in waiting]
        yield Frame(jobs, cluster, elapsed, expected=expected)
        if not waiting and all(is_final(job) for job in jobs):
            return
        time.sleep(watching.REFRESH_SECONDS)
    raise DemoFailed(f"The jobs have not ended after {MAX_SECONDS:g} s.")


def _record(client: Client, job_id: str) -> summaries.Record:
    return summaries.Record(client.job(job_id), client.allocations(job_id), client.predictions(job_id))


def _report(summary: dict[str, Any], directory: Path, *, as_json: bool) -> None:
    if as_json:
        output.print_json(summary)
        return
    output.show(summaries.closing_words(summary))
    output.say(f"Wrote {directory / 'summary.json'} and {directory / 'demo.png'}.")


def _keep_running(service: LocalService, url: str) -> None:
    """Leave the service up until Ctrl-C or SIGTERM."""
    output.say(f"The service goes on at {url} (OPTIMUS_URL={url} optimus list). Ctrl-C ends it.")
    with suppress(KeyboardInterrupt):
        while True:
            service.check()
            time.sleep(KEEP_RUNNING_POLL_SECONDS)


# --- directories -----------------------------------------------------------------------------------------------------


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoFailed(f"{directory}: {error.strerror or error}") from error


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Hold the directory: a second demo in it would end the first one's tasks."""
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoFailed(f"Another demo is running in {directory}; give another --directory.") from error
        yield


def _fresh_data_directory(directory: Path) -> Path:
    """An empty data directory; what an earlier demo left is removed, with its processes if it was killed."""
    data_directory = directory / "data"
    if data_directory.exists() and not (data_directory / MARKER).exists():
        raise DemoFailed(f"{data_directory} exists and was not made by a demo; give another --directory.")
    end_processes(data_directory)
    shutil.rmtree(data_directory, ignore_errors=True)
    data_directory.mkdir()
    (data_directory / MARKER).touch()
    return data_directory


# --- signals ---------------------------------------------------------------------------------------------------------

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Ctrl-C, `kill` and a closed terminal all end the demo in order."""
    with _handled(_interrupt):
        yield


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Cleaning up takes bounded time; a second Ctrl-C must not leave processes behind."""
    with _handled(signal.SIG_IGN):
        yield


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    before = [signal.signal(number, handler) for number in ENDING_SIGNALS]
    try:
        yield
    finally:
        for number, previous in zip(ENDING_SIGNALS, before, strict=True):
            signal.signal(number, previous)
