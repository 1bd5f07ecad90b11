"""The processes of a script on one worker: started through `starter.py`, read line by line, signalled as groups."""

from __future__ import annotations

import array
import ast
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# --- which libraries a Python script is going to import, as its text says --------------------------------------------

OURS = "optimus_client"
LIBRARIES = frozenset(
    {"torch", "torchvision", "numpy", "pandas", "scipy", "sklearn", "transformers", "datasets", "accelerate"}
    | {"lightning", "pytorch_lightning"}
)
"""Libraries that take long to import and may be imported before a process is forked. Any other module may depend on
variables or start threads."""
MAX_SOURCE_BYTES = 4 * 1024 * 1024

Preloads = tuple[tuple[str, tuple[str, ...]], ...]
"""Module names, each with the members that are taken from it."""


def preloads(script: Path) -> Preloads:
    """The imports of `LIBRARIES` at the top level of a script; none of what cannot be read as Python."""
    try:
        if script.stat().st_size > MAX_SOURCE_BYTES:
            return ()
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    found: dict[str, list[str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                found.setdefault(alias.name, [])
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found.setdefault(statement.module, []).extend(alias.name for alias in statement.names if alias.name != "*")
    if any(name.partition(".")[0] == OURS for name in found):
        found[f"{OURS}.loop"] = []
    known = LIBRARIES | {OURS}
    return tuple((name, tuple(members)) for name, members in found.items() if name.partition(".")[0] in known)


STARTER = Path(__file__).with_name("starter.py")
TAIL_BYTES = 16 * 1024
"""What is kept of the end of what a process printed, for the message when it fails."""
READ_BYTES = 256 * 1024
"""Of what a process printed at once."""
READ_SECONDS = 0.1
"""What is printed within this time after a read is read together, unless it is more than `HURRY_BYTES`: a wake-up for
each line would cost more than to read it. After the start the time grows to this, so that the first step is known at
once."""
FIRST_READ_SECONDS, READ_GROWTH = 0.01, 1.5
HURRY_BYTES = 32 * 1024
PIPE_BYTES = 1024 * 1024
"""So much a process can print meanwhile without waiting."""
ORDER_BYTES = 64 * 1024
KILLED = 128 + signal.SIGKILL
LEASE_SECONDS = 20.0
"""A worker that is stopped for longer has no processes any more: less than the time after which its coordinator gives
its rank to another one (30 s after the last word, which is 5 s old at most when the worker is stopped)."""
BEATS_PER_LEASE = 10


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command that is a Python script or module and nothing that the interpreter would have to be asked for."""

    interpreter: str
    script: str | None
    module: str | None
    arguments: tuple[str, ...]


def as_python(argv: Sequence[str], environment: Mapping[str, str], directory: Path) -> PythonCommand | None:
    """The command as a script or module of an interpreter; None: it is something else, and is run as it is."""
    if not argv[0].rpartition("/")[2].startswith("python"):
        return None
    interpreter = shutil.which(argv[0], path=environment.get("PATH"))
    words = [word for word in argv[1:2] if word != "-u"] + list(argv[2:])
    if interpreter is None or not words:
        return None
    if words[0] == "-m" and len(words) > 1:
        return PythonCommand(interpreter, None, words[1], (words[1], *words[2:]))
    if words[0].startswith("-"):
        return None
    return PythonCommand(interpreter, str(directory / words[0]), None, tuple(words))


def ended_by_itself(exit_code: int | None) -> bool:
    """Whether a process ended, and not by a signal. `exit_code`: 128 + n after signal n; None: it has not ended."""
    return exit_code is not None and not _is_of_a_signal(exit_code)


def how_it_ended(exit_code: int) -> str:
    """In words. `exit_code`: 128 + n after signal n; -1 of `sys.exit` is 255, which is of none."""
    return f"signal {exit_code - 128}" if _is_of_a_signal(exit_code) else f"exit code {exit_code}"


def _is_of_a_signal(exit_code: int) -> bool:
    return exit_code - 128 in signal.valid_signals()


class Process:
    """One process of a script. Its output is passed on and read by a thread of its own."""

    def __init__(self, local_rank: int, pid: int, output: int, status: int, on_output: Callable[[int, bytes], None]):
        self.local_rank = local_rank
        self.pid = pid
        self.exit_code: int | None = None
        """128 + n after signal n; None while it runs."""
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._status = status
        self._hurries = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(output, on_output), name="output", daemon=True)
        self._reader.start()

    def _read(self, output: int, on_output: Callable[[int, bytes], None]) -> None:
        pause = FIRST_READ_SECONDS
        with os.fdopen(output, "rb", buffering=0) as stream:
            while data := stream.read(READ_BYTES):
                self._tail.append(data)
                self._tail_bytes += len(data)
                while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                    self._tail_bytes -= len(self._tail.popleft())
                on_output(self.local_rank, data)
                if len(data) < HURRY_BYTES:
                    self._hurries.wait(pause)
                    pause = min(pause * READ_GROWTH, READ_SECONDS)

    def hurry(self) -> None:
        """It is about to end: read what it prints at once, from now on."""
        self._hurries.set()

    def finish_reading(self, seconds: float) -> None:
        """It has ended: wait until all that it printed is read. Processes that it left behind may print on."""
        self.hurry()
        self._reader.join(seconds)

    def poll(self) -> int | None:
        """The exit code, once the process and its output have ended. Never waits."""
        if self.exit_code is None:
            with suppress(BlockingIOError):
                data = os.read(self._status, 64)
                self.exit_code = int(data) if data.strip().isdigit() else KILLED  # the starter itself was killed
                os.close(self._status)
        return self.exit_code

    def tail(self) -> str:
        """The end of what it printed."""
        self.finish_reading(1.0)
        return b"".join(list(self._tail))[-TAIL_BYTES:].decode(errors="replace")


class Starter:
    """Starts processes for one command. Used by one thread; another one tells the starter that this process lives."""

    def __init__(
        self, argv: Sequence[str], directory: Path, environment: Mapping[str, str], *, preload: bool = True
    ) -> None:
        """`environment`: all variables but those that differ between processes."""
        self._argv, self._directory, self._environment = tuple(argv), directory, dict(environment)
        self._python = as_python(argv, environment, directory) if preload else None
        self._imports: Preloads = ()
        if self._python is not None and self._python.script is not None:
            self._imports = preloads(Path(self._python.script))
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers = b""
        self._lease_seconds = LEASE_SECONDS
        self._beat_at = time.monotonic()
        self._closed = threading.Event()
        self._sending = threading.Lock()
        """Guards what is sent to the starter."""
        threading.Thread(target=self._beat, name="lease", daemon=True).start()

    @property
    def has_lapsed(self) -> bool:
        """Whether this process was stopped for longer than its lease: what it had started is ended."""
        return time.monotonic() - self._beat_at > self._lease_seconds

    def renew(self) -> None:
        """Begin another lease, after one that has lapsed."""
        self._beat_at = time.monotonic()

    def _beat(self) -> None:
        while not self._closed.wait(self._lease_seconds / BEATS_PER_LEASE):
            # This process may be stopped between any two lines: the lease lasts from before the sign of life was sent.
            now = time.monotonic()
            if self.has_lapsed:
                continue  # it stays lapsed until its user begins another one
            with self._sending, suppress(OSError):
                if self._control is not None:
                    self._control.send(b"\n", socket.MSG_DONTWAIT)
            self._beat_at = now

    def prepare(self) -> None:
        """Start the starter, if it does not run; it imports the script's libraries meanwhile."""
        if self._process is not None and self._process.poll() is None:
            return
        self._hang_up()
        ours, theirs = socket.socketpair()
        interpreter = sys.executable if self._python is None else self._python.interpreter
        isolated = ["-I"] if self._python is None else []
        imports = json.dumps(self._imports)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [
                        interpreter,
                        *isolated,
                        "-u",
                        str(STARTER),
                        str(theirs.fileno()),
                        imports,
                        str(self._lease_seconds),
                    ],
                    stdin=subprocess.DEVNULL,
                    cwd=self._directory if self._directory.is_dir() else "/",
                    env=self._environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        self._control, self._answers = ours, b""
        self._line()  # only a starter that has imported everything answers

    def start(self, local_rank: int, variables: Mapping[str, str], on_output: Callable[[int, bytes], None]) -> Process:
        """Start one process with these variables beside those of all. Raises `OSError`: the starter is gone."""
        self.prepare()
        assert self._control is not None, "it is prepared"
        reads_output, output = os.pipe()
        with suppress(OSError, AttributeError):
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        reads_status, status = os.pipe()
        os.set_blocking(reads_status, False)
        python = self._python
        order = {
            "argv": self._argv if python is None else python.arguments,
            "script": None if python is None else python.script,
            "module": None if python is None else python.module,
            "directory": str(self._directory),
            "environment": {**self._environment, **variables},
        }
        try:
            line = json.dumps(order).encode() + b"\n"
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [output, status]))]
            with self._sending:
                sent = self._control.sendmsg([line[:ORDER_BYTES]], rights)
                self._control.sendall(line[sent:])
            pid = int(self._line())
        except (OSError, ValueError):
            os.close(reads_output)
            os.close(reads_status)
            raise
        finally:
            os.close(output)
            os.close(status)
        return Process(local_rank, pid, reads_output, reads_status, on_output)

    @property
    def pid(self) -> int | None:
        """Of the process below which all run; None: there is none."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the starter, and with it all processes that it has started."""
        self._closed.set()
        self._hang_up()

    def _hang_up(self) -> None:
        with self._sending:
            if self._control is not None:
                self._control.close()
                self._control = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _line(self) -> bytes:
        assert self._control is not None, "it is prepared"
        while b"\n" not in self._answers:
            data = self._control.recv(4096)
            if not data:
                raise OSError("the process that starts the command has ended")
            self._answers += data
        line, _, self._answers = self._answers.partition(b"\n")
        return line


def terminate_if(processes: Sequence[Process], are_ready: Callable[[Sequence[int]], bool]) -> bool:
    """SIGTERM to these processes if they are ready; else they go on. They stand still while `are_ready` looks at their
    groups, so that nothing that it looks for begins between the look and the signal. Returns what it said."""
    for process in processes:
        signal_group(process, signal.SIGSTOP)
    are = are_ready([process.pid for process in processes if process.exit_code is None])
    for process in processes:
        if are:
            signal_group(process, signal.SIGTERM)
        signal_group(process, signal.SIGCONT)
    return are


def signal_group(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process and all that it has started, unless it has ended."""
    if process.exit_code is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
