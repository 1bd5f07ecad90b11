"""The demo from an empty directory to a summary; whatever happens, nothing that it started stays."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from optimus_cli import output, plots, watching
from optimus_cli.client import Client, is_final
from optimus_cli.demo import summary as summaries
from optimus_cli.demo.processes import LocalService, end_processes
from optimus_cli.demo.scenario import Arrival, arrivals, check_scripts_can_run, script_arrivals
from optimus_cli.errors import DemoFailed, Unreachable
from optimus_cli.live import Frame

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
