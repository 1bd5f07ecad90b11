"""Starts the processes of a script. Run by the script's own interpreter, so it imports nothing of Optimus.

    python starter.py SOCKET PRELOAD LEASE_SECONDS

It has imported the libraries that the script is going to import (torch takes seconds), and forks: a process that starts
again after a change of the workers begins at once, and shares the memory of the libraries with the one before.

Each order is a line of JSON with two descriptors: where the process prints, and where its exit code is written.

    {"argv": [...], "script": path | null, "module": name | null, "directory": path, "environment": {...}}

With `script` or `module` the process runs that as Python runs it, with `argv` as `sys.argv`; else it becomes `argv`.
The first answer on the socket is a newline, once the libraries are imported; later ones are process ids, as lines. When
the socket is closed, because the agent is gone, all processes are killed. So they are when the agent has sent nothing,
not even an empty line, for LEASE_SECONDS: it is stopped, its coordinator gives its rank to another worker, and no two
processes of one rank may train. An agent that stays silent is killed later, so that another takes its place.
"""

from __future__ import annotations

import array
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MAX_ORDER_BYTES = 4 * 1024 * 1024
ABANDONED_LEASES = 4.0
"""After so many leases without a sign of life the agent is killed."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    set_first_path(str(Path.cwd()))  # nothing that lies beside this file is the script's
    # Neither this process nor those that are forked look through all that is imported: hardly any of it is garbage,
    # and it would take a third of the time here, and a second whenever one of those ends.
    gc.disable()
    for name, members in json.loads(sys.argv[2]):
        preload(name, members)
    preload_optimizers()
    keep_process_groups()
    gc.freeze()
    gc.enable()
    order, out = serve(control, float(sys.argv[3]))
    control.close()
    become(order, out)


def preload(name: str, members: list[str]) -> None:
    """Import a library and what the script takes from it. The script itself reports what is wrong with an import."""
    with suppress(BaseException):  # whatever a library does when it is imported
        module = importlib.import_module(name)
        for member in members:
            getattr(module, member, None)


def preload_optimizers() -> None:
    """The first optimizer makes torch import 800 modules more, for about a second and a half."""
    if "torch" in sys.modules:
        with suppress(BaseException):
            torch = sys.modules["torch"]
            torch.optim.SGD([torch.nn.Parameter(torch.empty(0))], lr=0.1)


def keep_process_groups() -> None:
    """Keep PyTorch from a deadlock at the end of a training, as long as the interpreter lives.

    The model of `DistributedDataParallel` may hold the last reference to a gloo process group. Its destructor then
    waits, holding the interpreter's lock, for threads that wait for this lock (PyTorch 2.13). This becomes likely when
    `torch._dynamo` is imported before the model is made, which `preload_optimizers` does: otherwise the traceback of an
    import keeps the model until the process ends. So a group that the script destroys is kept until then.
    """
    package: Any = sys.modules.get("torch.distributed")
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if package is None or c10d is None:
        return
    destroy = c10d.destroy_process_group
    kept: list[Any] = []

    @functools.wraps(destroy)
    def keep_and_destroy(group: Any = None) -> None:
        with suppress(Exception):
            kept[:] = [c10d._get_default_group()]
        destroy(group)

    c10d.destroy_process_group = package.destroy_process_group = keep_and_destroy


# --- the starter -----------------------------------------------------------------------------------------------------


def serve(control: socket.socket, lease_seconds: float) -> tuple[dict[str, Any], int]:
    """Fork for each order. Returns in the new process only, with its order and what it prints to."""
    agent = os.getppid()
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a process leaves behind, in whatever session, becomes a child of this one
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.sendall(b"\n")
    running: dict[int, int] = {}
    """Process id → where its exit code is written."""
    heard_at = time.monotonic()
    while True:
        ready, _, _ = select.select([control.fileno(), reading], [], [], lease_seconds / 10)
        silent = time.monotonic() - heard_at
        if reading in ready:
            os.read(reading, 4096)
            collect(running)
        if control.fileno() not in ready:
            if silent > lease_seconds:
                for pid in running:
                    kill_group(pid)
            if silent > ABANDONED_LEASES * lease_seconds and os.getppid() == agent:
                os.kill(agent, signal.SIGKILL)
            continue
        heard_at = time.monotonic()
        order, descriptors = receive(control)
        if order is None:
            for pid in running:
                kill_group(pid)
            kill_children()
            os._exit(0)
        if not order:
            continue  # a sign of life
        out, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (reading, writing, status, *running.values()):
                os.close(descriptor)
            return order, out
        with suppress(OSError):
            os.setpgid(pid, pid)  # the new process does so as well; whoever comes first
        os.close(out)
        running[pid] = status
        control.sendall(b"%d\n" % pid)


def collect(running: dict[int, int]) -> None:
    """Write down how processes ended, and end what they have left behind: in their group at once, elsewhere once no
    process runs."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid not in running:
            continue
        kill_group(pid)
        if len(running) == 1:
            kill_children()
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        descriptor = running.pop(pid)
        with suppress(OSError):
            os.write(descriptor, b"%d\n" % code)
        os.close(descriptor)


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_children() -> None:
    """End all that this process or a child of it has started; for a second at most, for some may not be its own."""
    for _ in range(50):
        found = descendants(os.getpid())
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def descendants(root: int) -> list[int]:
    """Processes that run below this one."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - entries come and go
        with suppress(OSError, ValueError, IndexError):
            state, parent = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split(None, 2)[:2]
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found, left = [], [root]
    while left:
        new = children.pop(left.pop(), [])
        found += new
        left += new
    return found


def prctl(option: int, value: int) -> None:
    """Ask Linux for something about this process; elsewhere nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


def receive(control: socket.socket) -> tuple[dict[str, Any] | None, tuple[int, ...]]:
    """The next order and its descriptors; an empty one: the agent lives; None: it is gone."""
    descriptors: array.array[int] = array.array("i")
    line = b""
    while not line.endswith(b"\n"):
        try:
            data, ancillary, _, _ = control.recvmsg(65536, socket.CMSG_LEN(2 * descriptors.itemsize))
        except OSError:
            return None, ()
        if not data or len(line) > MAX_ORDER_BYTES:
            return None, ()
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        line += data
    return json.loads(line) if line.strip() else {}, tuple(descriptors)


# --- the new process -------------------------------------------------------------------------------------------------


def become(order: dict[str, Any], out: int) -> None:
    """Run what was ordered, in a process group of its own that dies with the starter."""
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)  # where it is, if it hangs; the script may take it
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for descriptor in (nothing, out):
        if descriptor > 2:
            os.close(descriptor)
    argv, environment = order["argv"], order["environment"]
    try:
        os.chdir(order["directory"])
    except OSError as error:
        end(127, f"the working directory cannot be used: {error}")
    os.environ.clear()
    os.environ.update(environment)
    if order["script"] is None and order["module"] is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvpe(argv[0], argv, environment)  # noqa: S606 - the user's command, as it is
        except FileNotFoundError:
            end(127, f"{argv[0]}: command not found")
        except OSError as error:
            end(126, f"{argv[0]}: {error.strerror}")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python has it
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # forked processes would draw the same numbers
    sys.argv = argv
    sys.excepthook = own_frames_only
    if order["module"] is not None:
        set_first_path(str(Path.cwd()))
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        return
    script = Path(order["script"])
    if not script.is_file():
        end(127, f"can't open file {str(script)!r}: there is no such file")
    set_first_path(str(script.parent.resolve()))
    runpy.run_path(str(script), run_name="__main__")


def own_frames_only(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error as Python does, from the script on."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def set_first_path(directory: str) -> None:
    """Python puts the script's directory first, unless a flag forbids it."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = directory


def end(code: int, message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
