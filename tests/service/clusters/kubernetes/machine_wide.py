"""Names that real nodes have on the whole machine: one run at a time has them, and a killed run's are taken back."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAMESPACES, _STATE, _CGROUPS = Path("/run/netns"), Path("/run"), Path("/sys/fs/cgroup")
_PATIENCE_S = 60.0


@contextmanager
def held(names: list[str]) -> Iterator[None]:
    """The network namespaces `names` and what goes with them, for one run; another one waits for its end.

    A run that was killed leaves nodes behind. The next one would fail for names that exist, and a kubelet that is left
    kills the pods of the next one: it finds them in its own control group and does not know them.
    """
    with (Path(tempfile.gettempdir()) / "optimus-real-nodes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in names:
            take_back(name)
        yield


def take_back(name: str) -> None:
    """Ends what is left of the node of this network namespace: processes, network, cgroups and state."""
    until = time.monotonic() + _PATIENCE_S
    while (found := _processes(name)) and time.monotonic() < until:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    _run("ip", "netns", "delete", name)
    (_NAMESPACES / name).unlink(missing_ok=True)  # a file without a namespace, as after a restart of the machine
    _run("ip", "link", "delete", f"v{name}")
    for top in _CGROUPS.glob(f"*/{name}"):
        for directory, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
    shutil.rmtree(_STATE / f"k8s-{name}", ignore_errors=True)


def _processes(name: str) -> set[int]:
    """Those in the namespace (containerd, kubelet, its shims), and the pods' own, which are in the node's cgroup.

    A namespace that has lost its name lives on in its processes: these are found by the node's state directory, which
    is in their environment (`R`) or among their arguments.
    """
    listed = [_run("ip", "netns", "pids", name)]
    listed += [path.read_text() for path in (_CGROUPS / "pids" / name).rglob("cgroup.procs")]
    state = str(_STATE / f"k8s-{name}").encode()
    return {int(word) for text in listed for word in text.split()} | {
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and _belongs_to(process, state) and int(process.name) != os.getpid()
    }


def _belongs_to(process: Path, state: bytes) -> bool:
    try:
        variables, arguments = ((process / name).read_bytes().split(b"\0") for name in ("environ", "cmdline"))
    except OSError:  # it has ended
        return False
    return b"R=" + state in variables or any(state + b"/" in each for each in arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout
