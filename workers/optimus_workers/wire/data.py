"""The calling end of a data connection (blocking), the exchange of memory, and views of arrays as bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_workers.errors import ConnectionOver, WireError
from optimus_workers.wire import secret
from optimus_workers.wire.frames import HEADER_BYTES, FrameType, Header, decode_header
from optimus_workers.wire.sockets import HANDSHAKE_SECONDS, Transport, cut_after, dial, tune
from optimus_workers.wire.values import Address

NO_RANK = 0xFFFF_FFFF
"""The source of a connection by which a server fetches from another one."""
MAX_SHARED = 2
"""Descriptors in one SHARE: a worker's push, or the two versions of a server's parameters."""


def data_context(epoch: int, source: int) -> str:
    """What the proofs of a data connection are about."""
    return f"data {epoch} {source}"


def connect(
    address: Address,
    token: str,
    epoch: int,
    source: int,
    *,
    local: str | None = None,
    transport: Transport = Transport.AUTO,
    bytes_per_second: float | None = None,
) -> socket.socket:
    """An open connection to a server after the handshake. Raises `OSError` or `WireError`."""
    connection = dial(address, local, transport)
    try:
        tune(connection, bytes_per_second)
        with cut_after(connection, HANDSHAKE_SECONDS):
            _prove(connection, token, epoch, source)
    except BaseException:
        connection.close()
        raise
    return connection


def _prove(connection: socket.socket, token: str, epoch: int, source: int) -> None:
    """The caller's part of the handshake. Raises `WireError` when the server does not know the token."""
    _, theirs = receive_frame(connection, FrameType.CHALLENGE)
    ours, context = secret.new_nonce(), data_context(epoch, source)
    proof = secret.caller_proof(token, theirs, ours, context)
    hello = Header(FrameType.HELLO, epoch=epoch, source=source, length=len(proof) + len(ours))
    connection.sendall(hello.encode() + proof + ours)
    _, answer = receive_frame(connection, FrameType.WELCOME)
    if not secret.same(answer, secret.listener_proof(token, theirs, ours, context)):
        raise WireError("the server does not know the job token")


def send_share(
    connection: socket.socket, epoch: int, source: int, descriptors: Sequence[int], *, maps: bool = True
) -> None:
    """Give the other end of a Unix socket memory of this process (maybe none). Raises `OSError`.

    `maps`: what is offered in return will be mapped.
    """
    header = Header(FrameType.SHARE, epoch=epoch, source=source, section=int(maps)).encode()
    if descriptors:
        socket.send_fds(connection, [header], list(descriptors))
    else:
        connection.sendall(header)


def receive_share(connection: socket.socket) -> tuple[Header, list[int]]:
    """The other end's SHARE; the caller closes the descriptors. Raises `WireError`."""
    data, descriptors, _, _ = socket.recv_fds(connection, HEADER_BYTES, MAX_SHARED)
    try:
        if not data:
            raise ConnectionOver("the other end hung up")
        header = decode_header(data + bytes(_receive(connection, HEADER_BYTES - len(data))))
        if header.type is not FrameType.SHARE:
            raise WireError(f"expected SHARE, not {header.type.name}")
    except BaseException:
        close_descriptors(descriptors)
        raise
    return header, descriptors


def close_descriptors(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def receive_frame(connection: socket.socket, expected: FrameType) -> tuple[Header, bytes]:
    """The next frame. Raises `WireError` when it is of another type, `ConnectionOver` at the end."""
    header = receive_header(connection)
    if header.type is not expected:
        raise WireError(f"expected {expected.name}, not {header.type.name}")
    return header, bytes(_receive(connection, header.payload_bytes))


def receive_header(connection: socket.socket) -> Header:
    """The next frame's header. Raises `WireError`, `ConnectionOver` at the end."""
    return decode_header(_receive(connection, HEADER_BYTES))


def _receive(connection: socket.socket, n_bytes: int) -> bytearray:
    data = bytearray(n_bytes)
    receive_into(connection, memoryview(data))
    return data


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill the whole view. Raises `ConnectionOver` at the end."""
    # Without a timeout, the system waits for all of it: one call instead of one for each piece that arrives.
    flags = socket.MSG_WAITALL if connection.gettimeout() is None else 0
    n_missing = len(view)
    while n_missing:
        n_bytes = connection.recv_into(view, 0, flags)
        if not n_bytes:
            raise ConnectionOver("the other end hung up")
        n_missing -= n_bytes
        if n_missing:
            view = view[n_bytes:]


def send_buffers(connection: socket.socket, buffers: Sequence[memoryview | bytes]) -> int:
    """Send all of them, in as few calls as there are without copying them together; their length in bytes.

    Raises `OSError`.
    """
    total = sum(map(len, buffers))
    n_bytes = connection.sendmsg(buffers)
    if n_bytes < total:  # hardly ever: the socket blocks
        pending = [memoryview(buffer) for buffer in buffers]
        while pending := unsent(pending, n_bytes):
            n_bytes = connection.sendmsg(pending)
    return total


def unsent(buffers: list[memoryview], n_bytes: int) -> list[memoryview]:
    """What is left of the buffers after the first `n_bytes`."""
    for index, buffer in enumerate(buffers):
        if n_bytes < len(buffer):
            return [buffer[n_bytes:], *buffers[index + 1 :]]
        n_bytes -= len(buffer)
    return []


def as_bytes(array: NDArray[np.generic]) -> memoryview:
    """The memory of a contiguous array, without a copy."""
    # numpy's stubs call an array a buffer only from Python 3.12 on.
    return memoryview(array).cast("B")  # type: ignore[arg-type,unused-ignore]
