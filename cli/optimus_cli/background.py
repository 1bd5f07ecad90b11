"""The service in the background: started until it is ready, found by its data directory, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

from optimus_cli.client import Client
from optimus_cli.errors import BadInput, CliError

Value = TypeVar("Value")

LOG_NAME = "service.log"
READY_SECONDS = 120.0
"""Importing the service and making a database take seconds; on a machine that is busy, a minute."""
STOP_SECONDS = 60.0
"""Open requests have 5 s to end and a round in progress 30 s (`server.py`); after that something is wrong."""
STARTING_SECONDS = 30.0
"""A service that began longer ago and does not listen at an address most likely never will."""
POLL_SECONDS = 0.1
LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 4000


class DidNotStart(BadInput):
    """The service ended before it was ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """What `service.json` in a data directory says of the service that writes it."""

    url: str
    pid: int


def start(data_directory: Path, arguments: Sequence[str]) -> Running:
    """Run `optimus` with these arguments (`serve ...`) in a session of its own, and wait until it is ready.

    Its log is `service.log` in the data directory, added to.

    Raises:
        DidNotStart: it ended before it was ready, or another one uses the directory.
    """
    if (other := find(data_directory)) is not None:
        raise DidNotStart(
            f"another service is running on the data directory {data_directory}: {other.url} (process {other.pid}). "
            "Stop it with `optimus stop`, or give another --data-directory and --port."
        )
    log = data_directory / LOG_NAME
    data_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as stream:
        begin = stream.seek(0, os.SEEK_END)

        def begun() -> subprocess.Popen[bytes]:
            # -P: what lies in the current directory is nothing to the service.
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "optimus_cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        deadline = time.monotonic() + READY_SECONDS
        with _ended_with_this_process(begun) as process:
            while process.poll() is None:
                running = find(data_directory)
                if running is not None and running.pid == process.pid and _is_ready(running.url):
                    return running
                if time.monotonic() > deadline:
                    raise DidNotStart(f"The service was not ready after {READY_SECONDS:g} s.\n{_tail(log, begin)}")
                time.sleep(POLL_SECONDS)
    raise DidNotStart(f"The service did not start (exit code {process.returncode}).\n{_tail(log, begin)}")


@contextmanager
def _ended_with_this_process(begun: Callable[[], subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    """Who gives up waiting, by Ctrl-C or SIGTERM, too, leaves no service that comes up later; nor does who is
    interrupted while the process begins: that is heard once it can be ended."""
    process: subprocess.Popen[bytes] | None = None
    missed: list[int] = []

    def interrupted(number: int, _: FrameType | None) -> None:
        if process is None:
            missed.append(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    # A shell has what it runs in the background ignore Ctrl-C.
    heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, interrupted) for each in heard}
    try:
        process = begun()
        if missed:
            interrupted(missed[0], None)
        yield process
    except BaseException:
        if process is not None:
            process.terminate()
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def find(data_directory: Path) -> Running | None:
    """The service that wrote its address into this data directory, if its process lives."""
    try:
        found = json.loads((data_directory / "service.json").read_text())
        running = Running(str(found["url"]), int(found["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return running if _holds_lock(running.pid, data_directory) else None


def find_started(data_directory: Path) -> Running | None:
    """As `find`, after services that are just starting have said which directory they use."""
    while (running := find(data_directory)) is None and any(_may_get(pid, data_directory) for pid in _services()):
        time.sleep(POLL_SECONDS)
    return running


def stop(running: Running) -> None:
    """SIGTERM, and wait until the process is gone. Raises `CliError` when it stays, or belongs to another user."""
    try:
        handle = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not select.select([handle], [], [], STOP_SECONDS)[0]:
            raise CliError(f"The service (process {running.pid}) still runs {STOP_SECONDS:g} s after SIGTERM.")
    except PermissionError as error:
        raise CliError(f"The service (process {running.pid}) belongs to another user.") from error
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def is_starting() -> bool:
    """Whether a service was started on this machine a moment ago, so that it may not listen yet."""
    return any(_age_seconds(pid) < STARTING_SECONDS for pid in _services())


def _holds_lock(pid: int, data_directory: Path) -> bool:
    """Whether the process has the directory's lock file open: its id may mean another one after a crash."""
    try:
        lock = (data_directory / "lock").stat()
        opened = [each.stat for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(os.path.samestat(lock, each) for each in _of_open(opened))


def _may_get(pid: int, data_directory: Path) -> bool:
    """Whether a service that began a moment ago uses the directory, or uses none yet."""
    if _age_seconds(pid) >= STARTING_SECONDS:
        return False
    try:
        opened = [each.readlink for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False  # it has ended, or belongs to another user
    locks = [path for path in _of_open(opened) if path.name == "lock"]
    return not locks or data_directory / "lock" in locks


def _of_open(reads: Iterable[Callable[[], Value]]) -> Iterator[Value]:
    """What these say of the files that a process has open; it may close some meanwhile, as one that starts does."""
    for read in reads:
        with contextlib.suppress(OSError):
            yield read()


def _services() -> Iterator[int]:
    """Processes of this machine that run `optimus serve`; none where there is no /proc."""
    for entry in Path("/proc").glob("[1-9]*"):
        if entry.name.isdigit() and _is_service(_arguments(int(entry.name))):
            yield int(entry.name)


def _arguments(pid: int) -> list[str]:
    try:
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    except OSError:
        return []


def _is_service(arguments: Sequence[str]) -> bool:
    """`python .../bin/optimus serve ...` or `python -m optimus_cli serve ...`."""
    if "serve" not in arguments:
        return False
    program = arguments[arguments.index("serve") - 1] if arguments.index("serve") else ""
    return Path(program).name in ("optimus", "optimus_cli", "__main__.py")


def _age_seconds(pid: int) -> float:
    """How long ago the process began; infinite if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return float("inf")
    return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _is_ready(url: str) -> bool:
    with Client(url, None) as client:
        return client.is_ready()


def _tail(log: Path, begin: int) -> str:
    """The last lines that were written after `begin`."""
    with log.open("rb") as stream:
        stream.seek(max(begin, os.fstat(stream.fileno()).st_size - LOG_TAIL_BYTES))
        lines = stream.read().decode(errors="replace").splitlines()
    return "\n".join([f"The end of {log}:", *(f"  {line}" for line in lines[-LOG_TAIL_LINES:])])
