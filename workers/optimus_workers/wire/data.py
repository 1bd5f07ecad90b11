"""The calling end of a data connection (blocking), and views of tensors as bytes."""

from __future__ import annotations

import socket

from torch import Tensor

from optimus_workers.wire import secret
from optimus_workers.wire.errors import ConnectionOver, WireError
from optimus_workers.wire.frames import HEADER_BYTES, FrameType, Header, decode_header
from optimus_workers.wire.messages import Address

CONNECT_SECONDS = 10.0
NO_RANK = 0xFFFF_FFFF
"""The source of a connection by which a server fetches from another one."""


def data_context(epoch: int, source: int) -> str:
    """What the proofs of a data connection are about."""
    return f"data {epoch} {source}"


def connect(address: Address, token: str, epoch: int, source: int) -> socket.socket:
    """An open connection to a server after the handshake. Raises `OSError` or `WireError`."""
    connection = socket.create_connection(address, timeout=CONNECT_SECONDS)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _, theirs = receive_frame(connection, FrameType.CHALLENGE)
        ours, context = secret.new_nonce(), data_context(epoch, source)
        proof = secret.caller_proof(token, theirs, ours, context)
        hello = Header(FrameType.HELLO, epoch=epoch, source=source, length=len(proof) + len(ours))
        connection.sendall(hello.encode() + proof + ours)
        _, answer = receive_frame(connection, FrameType.WELCOME)
        if not secret.same(answer, secret.listener_proof(token, theirs, ours, context)):
            raise WireError("the server does not know the job token")
    except BaseException:
        connection.close()
        raise
    return connection


def receive_frame(connection: socket.socket, expected: FrameType) -> tuple[Header, bytes]:
    """The next frame. Raises `WireError` when it is of another type, `ConnectionOver` at the end."""
    header = decode_header(_receive(connection, HEADER_BYTES))
    if header.type is not expected:
        raise WireError(f"expected {expected.name}, not {header.type.name}")
    return header, bytes(_receive(connection, header.length))


def _receive(connection: socket.socket, n_bytes: int) -> bytearray:
    data = bytearray(n_bytes)
    receive_into(connection, memoryview(data))
    return data


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill the whole view. Raises `ConnectionOver` at the end."""
    while view:
        n_bytes = connection.recv_into(view)
        if not n_bytes:
            raise ConnectionOver("the other end hung up")
        view = view[n_bytes:]


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, writable, without a copy."""
    # numpy's stubs call an array a buffer only from Python 3.12 on.
    return memoryview(tensor.numpy()).cast("B")  # type: ignore[arg-type,unused-ignore]
