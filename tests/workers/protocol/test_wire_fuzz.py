"""Whatever a caller that knows the token sends: the server refuses or takes it, goes on, and gives no memory for it."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.workers.protocol.test_connections import PROFILE, TOKEN, RunningServer

from optimus_workers.errors import WireError
from optimus_workers.wire.data import connect, receive_share, send_share
from optimus_workers.wire.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, Codec, FrameType, Header

MANY = st.sampled_from([0, 1, 5, 16, 262_144, 600_000, 2**20, 2**31, 2**40, 2**63])
CLOSE_TO_LEGAL = st.builds(
    Header,
    type=st.sampled_from(FrameType),
    epoch=st.sampled_from([3, 3, 3, 2]),
    source=st.sampled_from([0, 0, 0, 1]),
    step=st.sampled_from([5, 5, 6]),
    offset=MANY,
    length=st.one_of(MANY, st.sampled_from([4 * 262_144, 4 * PROFILE.total_floats, 64, 8])),
    version=MANY,
    section=st.integers(0, 3),
    learning_rate=st.floats(),
    crc=st.sampled_from([0, 7]),
    codec=st.sampled_from(Codec),
)
FRAMES = st.lists(
    st.tuples(st.one_of(CLOSE_TO_LEGAL.map(Header.encode), st.binary(max_size=200)), st.binary(max_size=900))
)
ALLOWED_BYTES = 64 * 2**20
"""More than the server's own range and scratch, less than one payload of what the headers above announce at most."""
assert MAX_PAYLOAD_BYTES < ALLOWED_BYTES < 2**31


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    running = RunningServer()
    yield running
    running.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=FRAMES, is_local=st.booleans())
def test_a_server_survives_its_callers(
    server: RunningServer, frames: list[tuple[bytes, bytes]], is_local: bool
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    local = server.listener.local if is_local else None
    with closing(connect(server.address, TOKEN, 3, 0, local=local)) as connection, suppress(OSError, WireError):
        if connection.family == socket.AF_UNIX:
            send_share(connection, 3, 0, [])
            receive_share(connection)
        for header, payload in frames:
            connection.sendall(header + payload)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(2**16):
            pass
    assert not server.failures
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ALLOWED_BYTES // 1024
    connect(server.address, TOKEN, 3, 0).close()


@given(noise=st.binary(min_size=1, max_size=3 * HEADER_BYTES))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stranger_gets_a_challenge_and_the_end(server: RunningServer, noise: bytes) -> None:
    received = b""
    with closing(socket.create_connection(server.address, timeout=30)) as connection, suppress(ConnectionError):
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(2**16):
            received += data
    assert len(received) <= HEADER_BYTES + 32
    assert not server.failures
