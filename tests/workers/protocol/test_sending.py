"""What a server's connection sends: in order, whole, and without keeping back whoever has something to send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_workers.server.connection import SMALL_BYTES, Sending
from optimus_workers.wire.data import receive_frame
from optimus_workers.wire.frames import Codec, FrameType, Header

SIZES = st.sampled_from([0, 8, SMALL_BYTES, SMALL_BYTES + 8, 300_000])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.settimeout(20)
        yield ours, theirs


def frame(step: int, n_bytes: int) -> tuple[Header, bytes]:
    kind = FrameType.NORMS if n_bytes else FrameType.MISSING
    return Header(kind, step=step, length=n_bytes), bytes([step % 251]) * n_bytes


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(SIZES, max_size=12))
def test_frames_come_whole_and_in_order_however_slow_the_receiver_is(sizes: list[int]) -> None:
    frames = [frame(step, n_bytes) for step, n_bytes in enumerate(sizes)]
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.settimeout(20)
        sending = Sending(ours)
        sending.start()
        for header, payload in frames:
            sending.send(header, payload)  # returns, though nobody has received anything
        received = [receive_frame(theirs, header.type) for header, _ in frames]
        sending.stop()
    assert [(header.step, payload) for header, payload in received] == [
        (header.step, payload) for header, payload in frames
    ]


def test_nothing_is_sent_before_the_handshake_is_over(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    sending = Sending(ours)
    sending.send(*frame(1, 8))
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    theirs.settimeout(20)
    sending.start()
    assert receive_frame(theirs, FrameType.NORMS)[0].step == 1
    sending.stop()


def test_a_connection_that_is_over_is_hung_up(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    sending = Sending(ours)
    sending.start()
    sending.send(*frame(0, 0))
    receive_frame(theirs, FrameType.MISSING)
    theirs.close()
    for n_bytes in (0, 300_000):
        sending.send(*frame(1, n_bytes))  # raises nothing: it may be another connection's thread
    assert ours.recv(1) == b""
    sending.stop()


def test_a_header_for_another_place_is_what_a_changed_header_gives() -> None:
    push = Header(FrameType.PUSH, epoch=3, source=1, step=7, learning_rate=0.5)
    moved = Header(FrameType.PUSH, 3, 1, 7, 4096, 400, learning_rate=0.5, codec=Codec.BFLOAT16)
    assert push.encode_at(4096, 400, Codec.BFLOAT16) == moved.encode()
