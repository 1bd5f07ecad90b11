"""Two members of a process group, one of which is stopped while the other one passes it a large state.

    python stopped_member.py             the one that goes on; starts the other one
    python stopped_member.py stopped     the one that stops itself when the first part of it has come

They say to each other, line by line, what members say through the coordinator. Exit code 0: the one that goes on was
freed by `abort`, and is a member of another group afterwards.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from typing import IO

import torch

from optimus_workers.allreduce import gloo_sockets
from optimus_workers.allreduce.process_group import ProcessGroup
from optimus_workers.allreduce.rendezvous import Rendezvous
from optimus_workers.errors import ConnectionOver
from optimus_workers.wire.messages import Publish, Published

N_FLOATS = 32 * 2**20
"""Far more than the kernel buffers for a connection."""


def sender(stream: IO[str]) -> Callable[[Publish], None]:
    def send(said: Publish) -> None:
        stream.write(f"{said.epoch} {said.key} {said.value}\n")
        stream.flush()

    return send


def listen(rendezvous: Rendezvous, stream: IO[str]) -> None:
    for line in stream:
        epoch, key, value = line.split()
        rendezvous.received(Published(int(epoch), key, value))


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.001)


def member(rank: int, out: IO[str], into: IO[str]) -> ProcessGroup:
    rendezvous = Rendezvous(sender(out))
    threading.Thread(target=listen, args=(rendezvous, into), daemon=True).start()
    group = ProcessGroup(rendezvous, 1, rank, 2, "127.0.0.1", torch.device("cpu"))
    group.open()
    return group


def stopped() -> None:
    group, state = member(1, sys.stdout, sys.stdin), torch.zeros(N_FLOATS)
    threading.Thread(target=group.broadcast, args=(state, 0), daemon=True).start()
    wait_until(lambda: bool(state[0]))
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped(process: subprocess.Popen[str]) -> bool:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    return os.WIFSTOPPED(status)


def has_unsent_bytes(group: ProcessGroup) -> bool:
    """Whether the kernel holds something for the other member that it does not take."""
    found: list[int] = []
    own = group._listens_at
    assert own is not None
    gloo_sockets._each(
        own,
        group._others(),
        lambda connection: found.append(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0]),
    )
    return any(found)


def goes_on() -> None:
    command = [sys.executable, __file__, "stopped"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        group = member(0, other.stdin, other.stdout)

        def abort_once_it_waits() -> None:
            assert is_stopped(other)
            wait_until(lambda: has_unsent_bytes(group))
            group.abort()

        threading.Thread(target=abort_once_it_waits).start()
        try:
            group.broadcast(torch.ones(N_FLOATS), 0)
        except ConnectionOver:
            group.close()
        else:
            raise AssertionError("the other one is stopped")
        other.kill()
    alone = ProcessGroup(Rendezvous(lambda _: None), 2, 0, 1, "127.0.0.1", torch.device("cpu"))
    alone.open()
    alone.sum(torch.ones(3))
    alone.close()


if __name__ == "__main__":
    stopped() if sys.argv[1:] == ["stopped"] else goes_on()
