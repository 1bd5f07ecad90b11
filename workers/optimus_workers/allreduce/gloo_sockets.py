"""The TCP connections of a gloo process group, found among the process's own.

gloo cannot be asked to give up: an operation that waits for a process that hangs waits for ever, and a group that has
lost a member fails only where that member was a neighbour. Its connections can be hung up from outside, though, which
ends every operation at once, here and at the other ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from optimus_workers.wire.sockets import is_cut
from optimus_workers.wire.values import Address

_SO_MAX_PACING_RATE = 47


def listening() -> set[Address]:
    """Where this process listens for TCP connections."""
    found: set[Address] = set()
    for connection in _tcp_sockets():
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.add(_local(connection))
    return found


def hang_up(own: Address, others: Collection[Address]) -> int:
    """End all connections that came in at `own`, or go to one of `others`; how many there were."""
    return _each(own, others, lambda connection: connection.shutdown(socket.SHUT_RDWR))


def cut_off(own: Address, others: Collection[Address]) -> list[str]:
    """The hosts at the other ends of those that get no answer to what they send."""
    hosts: list[str] = []

    def look(connection: socket.socket) -> None:
        if is_cut(connection):
            hosts.append(str(connection.getpeername()[0]))

    _each(own, others, look)
    return hosts


def connected(own: Address, others: Collection[Address]) -> set[str]:
    """The hosts at the other ends of all of them."""
    hosts: set[str] = set()
    _each(own, others, lambda connection: hosts.add(str(connection.getpeername()[0])))
    return hosts


def count(own: Address, others: Collection[Address]) -> int:
    """How many such connections there are."""
    return _each(own, others, lambda _: None)


def pace(own: Address, others: Collection[Address], bytes_per_second: float) -> None:
    """Have the kernel limit what each of them sends."""
    rate = int(bytes_per_second)
    _each(own, others, lambda connection: connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate))


def _each(own: Address, others: Collection[Address], act: Callable[[socket.socket], None]) -> int:
    n_found = 0
    for connection in _tcp_sockets():
        with suppress(OSError):  # not connected, or ended meanwhile
            remote = connection.getpeername()[:2]
            if _local(connection) == own or remote in others:
                n_found += 1
                act(connection)
    return n_found


def _local(connection: socket.socket) -> Address:
    host, port = connection.getsockname()[:2]
    return str(host), int(port)


def _tcp_sockets() -> Iterator[socket.socket]:
    """A descriptor of its own for each TCP socket of this process, closed when the next one is asked for."""
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # closed meanwhile
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as connection:
                is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_internet and connection.type == socket.SOCK_STREAM:
                    yield connection
