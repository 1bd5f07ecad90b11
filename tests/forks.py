"""Processes that have imported their libraries before they begin: each of them alone would take seconds to do so.

    python forks.py DESCRIPTOR MODULE...

imports the modules and forks for each order that comes over the socket. The fork runs a module as `python -m` does,
with arguments, variables and a directory of its own, and ends as an interpreter ends.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

MAX_ORDER_BYTES = 256 * 1024

# --- the process that forks ------------------------------------------------------------------------------------------


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for name in sys.argv[2:]:
        import_module(name)
    # What is forked looks through none of this again, which would take half a second when it ends.
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, _collect)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_ORDER_BYTES, 3)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep(json.loads(message), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _collect(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(order: dict[str, Any], out: int, errors: int, status: int) -> None:
    """Fork once more, and write down the new process's id and how it ends."""
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(order, out, errors)
        return
    os.close(out)
    os.close(errors)
    os.write(status, b"%d\n" % pid)
    _, ended = os.waitpid(pid, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _become(order: dict[str, Any], out: int, errors: int) -> None:
    given = os.memfd_create("standard input")
    os.write(given, order["given"].encode())
    os.lseek(given, 0, os.SEEK_SET)
    for number, descriptor in enumerate((given, out, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["variables"])
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # forks would draw the same numbers
    sys.path[0] = order["directory"]
    sys.argv = [order["module"], *order["arguments"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


# --- who asks for forks ----------------------------------------------------------------------------------------------


class Forked:
    """A process that was forked; used as `subprocess.Popen` is."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.returncode: int | None = None
        self.pid = int(self._line())

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._status, 1)
            assert byte, "the process that forks has died"
            line += byte
        return line

    def poll(self) -> int | None:
        """The exit code, -n after signal n; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once it has ended. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([f"process {self.pid}"], timeout or 0.0)
            self.returncode = int(self._line())
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """A process that has imported some modules, and is started by the first who asks."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(
        self,
        arguments: Sequence[str],
        *,
        variables: Mapping[str, str],
        out: int,
        errors: int,
        module: str,
        given: str = "",
    ) -> Forked:
        """Fork, in this process's directory, for `python -m MODULE`.

        `variables`: all that there are; `out`, `errors`: the descriptors that it writes to; `given`: what it reads from
        its standard input.
        """
        order = {"module": module, "arguments": list(arguments), "variables": dict(variables), "given": given}
        reads, status = os.pipe()
        try:
            message = json.dumps({**order, "directory": str(Path.cwd())}).encode()
            assert len(message) < MAX_ORDER_BYTES
            socket.send_fds(self._prepared(), [message], [out, errors, status])
        finally:
            os.close(status)
        return Forked(reads)

    def _prepared(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno()), *self._modules],
                    pass_fds=[theirs.fileno()],
                )
        return self._control

    def close(self) -> None:
        """What was forked goes on."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(60)


@contextmanager
def forks(*modules: str) -> Iterator[Forks]:
    found = Forks(*modules)
    try:
        yield found
    finally:
        found.close()


if __name__ == "__main__":
    main()
