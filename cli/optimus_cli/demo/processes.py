"""The processes of the demo: the service that it starts, and the tasks that the service starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from optimus_cli.client import Client
from optimus_cli.errors import DemoFailed

START_SECONDS = 60.0
"""Importing the service on a busy machine takes seconds; a minute means that something is wrong."""
TERM_SECONDS = 10.0
"""The service ends within moments of SIGTERM; after this it is killed."""
GONE_SECONDS = 10.0
POLL_SECONDS = 0.1
LOG_TAIL_CHARACTERS = 2000
JOB_DIRECTORY_VARIABLE = "OPTIMUS_JOB_DIRECTORY"
"""Every task has it (docs/protocol.md), which tells the demo's own tasks from everybody else's."""
DATA_DIRECTORY_OPTION = "--data-directory"
"""The same for the service: one whose demo was killed goes on, without anybody's wanting it."""

Answer = TypeVar("Answer")


@dataclass(slots=True)
class LocalService:
    """`optimus serve` as a child process with a data directory of its own."""

    directory: Path
    """The data directory."""
    log: Path
    options: Sequence[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start it and wait until it is ready; its URL. Raises `DemoFailed`, with the end of its log."""
        command = [
            sys.executable,
            "-m",
            "optimus_cli",
            "serve",
            DATA_DIRECTORY_OPTION,
            str(self.directory),
            *self.options,
        ]
        # The user's own settings (another database, another address) must not reach the demo's service.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal reaches the demo alone, which then stops the service.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        url = self._wait(self._address, deadline)
        with Client(url, None) as client:
            self._wait(lambda: client.is_ready() or None, deadline)
        return url

    def _address(self) -> str | None:
        try:
            return str(json.loads((self.directory / "service.json").read_text())["url"])
        except (OSError, ValueError):
            return None

    def _wait(self, condition: Callable[[], Answer | None], deadline: float) -> Answer:
        while time.monotonic() < deadline:
            self.check()
            answer = condition()
            if answer is not None:
                return answer
            time.sleep(POLL_SECONDS)
        raise DemoFailed(
            f"The service was not ready after {START_SECONDS:g} s. The end of {self.log}:\n{self.log_tail()}"
        )

    def check(self) -> None:
        """Raises `DemoFailed` if the service has ended."""
        if self.process is not None and self.process.poll() is not None:
            code = self.process.returncode
            raise DemoFailed(f"The service ended (exit code {code}). The end of {self.log}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]

    def stop(self) -> None:
        """End the service, then every task that is left. Raises `DemoFailed` if one of them cannot be ended."""
        # The service first: it would start ended tasks again.
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TERM_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(TERM_SECONDS)
        end_processes(self.directory)


def end_processes(data_directory: Path) -> None:
    """End every service with this data directory and every task of it. Raises `DemoFailed` if that does not work."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        left = list(_processes(data_directory))
        if not left:
            return
        if time.monotonic() > deadline:
            raise DemoFailed(f"Could not end these processes: {', '.join(map(str, left))}")
        for pid in left:
            _kill(pid, data_directory)
        time.sleep(POLL_SECONDS)


def _processes(data_directory: Path) -> Iterator[int]:
    """Ids of the services with this data directory and of the processes that work in one of its job directories."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _belongs_to(int(entry.name), data_directory):
            yield int(entry.name)


def _belongs_to(pid: int, data_directory: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    directory = os.fsencode(data_directory)
    works_for_it = any(
        item.startswith(JOB_DIRECTORY_VARIABLE.encode() + b"=" + directory + b"/") for item in environment
    )
    return works_for_it or any(pair == (DATA_DIRECTORY_OPTION.encode(), directory) for pair in pairwise(arguments))


def _kill(pid: int, data_directory: Path) -> None:
    """SIGKILL, through a handle: the id cannot come to mean another process between the look and the signal."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _belongs_to(pid, data_directory):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
