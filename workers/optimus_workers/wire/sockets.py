"""Sockets of data connections: which kind, how they are set, and how a cut cable is noticed."""

from __future__ import annotations

import errno
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

from optimus_workers.errors import WireError
from optimus_workers.wire.values import Address

CONNECT_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
"""For a whole handshake, at either end: how long a caller without the token may keep a connection."""
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Why no connection can be accepted for now: no descriptors or no memory."""
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_PROBES = 5, 2, 3
"""An idle connection whose other end is out of reach fails after 11 s."""
MAX_UNANSWERED = 6
"""Retransmissions (or probes of a full receiver) in a row without an answer after which a connection counts as cut:
the pauses double from 0.2 s on, so that is 6 to 13 s. `TCP_USER_TIMEOUT` will not do: it also ends connections whose
receiver answers but has no room, and a server has none while it waits for a slow worker."""
_RETRANSMITS_AT, _PROBES_AT, _TCP_INFO_BYTES = 2, 3, 8
"""The first bytes of Linux's `struct tcp_info`."""
_SO_MAX_PACING_RATE = 47
_LOCAL_CONGESTION_CONTROL = (b"cubic", b"reno")
"""For connections within the machine, the first that it allows: there is nothing to be controlled, and BBR,
where it is the default, takes a third more of the sender's time with its timers."""


class Transport(StrEnum):
    """How a worker reaches a server."""

    AUTO = "auto"
    """Shared memory when both run on one machine, else TCP."""
    UNIX = "unix"
    """The bytes go through a Unix socket when both run on one machine, else TCP."""
    TCP = "tcp"


def listen_locally() -> tuple[socket.socket, str] | None:
    """A listening Unix socket and its name; None where there are none without a file.

    Names of this kind are of one network namespace: a process that can connect to one runs on this machine (and, in
    Kubernetes, with the host's network or in the same pod). They vanish with the process. The handshake is the same as
    over TCP.
    """
    if sys.platform != "linux":
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = f"optimus-{secrets.token_hex(16)}"
    listener.bind(f"\0{name}")
    listener.listen(1024)
    return listener, name


def dial(address: Address, local: str | None, transport: Transport) -> socket.socket:
    """A connection to a server, by its local name where that can be reached. Raises `OSError`."""
    if local is not None and transport is not Transport.TCP and sys.platform == "linux":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(f"\0{local}")
        except OSError:
            connection.close()  # another machine, or another namespace
        else:
            connection.settimeout(CONNECT_SECONDS)
            return connection
    return socket.create_connection(address, timeout=CONNECT_SECONDS)


@contextmanager
def cut_after(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Hang up when what is done here takes longer altogether. (A socket's timeout is one for each piece that comes, so
    an end that sends byte by byte could go on for ever.)

    Raises `TimeoutError` in place of the `OSError` or `WireError` that hanging up causes.
    """
    is_over = threading.Event()

    def hang_up() -> None:
        is_over.set()
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "no thread can be started") from error
    try:
        yield
    except (OSError, WireError) as error:
        if is_over.is_set():
            raise TimeoutError(f"no handshake within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()


def tune(connection: socket.socket, bytes_per_second: float | None = None) -> None:
    """Set what data connections need; `bytes_per_second` limits what is sent (the kernel paces it)."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        _choose_congestion_control(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        if bytes_per_second is not None:
            connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, int(bytes_per_second))


def _choose_congestion_control(connection: socket.socket) -> None:
    if connection.getsockname()[0] != connection.getpeername()[0]:
        return
    for name in _LOCAL_CONGESTION_CONTROL:
        with suppress(OSError):  # not allowed to this process, or not there
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return


def is_cut(connection: socket.socket) -> bool:
    """Whether what was sent has gone unanswered so often that the other end must be out of reach."""
    if connection.family == socket.AF_UNIX or sys.platform != "linux":
        return False
    with suppress(OSError):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return info[_RETRANSMITS_AT] + info[_PROBES_AT] >= MAX_UNANSWERED
    return False


def share_of_rate(bytes_per_second: float | None, n_workers: int, n_servers: int) -> float | None:
    """What one connection may send when each task may send and receive so much: the side with more connections
    binds."""
    return None if bytes_per_second is None else bytes_per_second / max(n_workers, n_servers, 1)
