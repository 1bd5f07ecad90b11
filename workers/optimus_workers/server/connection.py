"""One data connection of a server: handshake, then frames, received straight into the memory that they are for.

The connection's thread receives, and sums, updates and sends what it completed. It blocks while it receives, so that a
chunk costs one call. Small frames, such as those about shared memory, are handed to the system by the thread that has
them: no other thread has to be woken. Chunks, and what there is no room for, are sent by a thread that blocks, so that
a slow receiver holds up no other connection.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Protocol

from optimus_workers.errors import WireError
from optimus_workers.wire import secret
from optimus_workers.wire.compression import decode
from optimus_workers.wire.data import (
    NO_RANK,
    close_descriptors,
    data_context,
    receive_frame,
    receive_header,
    receive_into,
    receive_share,
    send_buffers,
    send_share,
    unsent,
)
from optimus_workers.wire.frames import Codec, FrameType, Header
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.sockets import HANDSHAKE_SECONDS, cut_after, tune

# --- what a connection sends -----------------------------------------------------------------------------------------

FRAMES_PER_CALL = 8
"""Frames handed to the system in one call, if so many are waiting."""
SMALL_BYTES = 4096
"""Payload that may be sent at once. When chunks were as well, the threads of a server that has all ranges were busy
copying where they should receive, and steps took longer."""

Buffers = list[memoryview]


def frame_buffers(header: Header, payload: memoryview | bytes = b"") -> Buffers:
    """What is sent of a frame."""
    head = memoryview(header.encode())
    return [head, memoryview(payload)] if payload else [head]


class Sending:
    """Nothing is sent before `start`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._ordering = threading.Lock()
        self._n_queued = 1  # frames that are to be sent before a new one; at first, the handshake
        self._queue: SimpleQueue[Buffers | None] = SimpleQueue()

    def start(self) -> None:
        """The handshake is over."""
        threading.Thread(target=self._run, name="data-sender", daemon=True).start()

    def stop(self) -> None:
        """The connection is over."""
        self._queue.put(None)

    def send(self, header: Header, payload: memoryview | bytes = b"") -> None:
        """Send a frame, after those before; its payload must stay as it is until it has been sent."""
        self.send_buffers(frame_buffers(header, payload))

    def send_buffers(self, buffers: Buffers) -> None:
        """The same with `frame_buffers`, which several connections may be given."""
        with self._ordering:
            if not self._n_queued and len(buffers[-1]) <= SMALL_BYTES:
                buffers = self._send_now(buffers)
            if buffers:
                self._n_queued += 1
                self._queue.put(buffers)

    def _send_now(self, buffers: Buffers) -> Buffers:
        """What is left when the system has taken what it has room for."""
        try:
            return unsent(buffers, self._socket.sendmsg(buffers, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return buffers
        except OSError:
            self.abort()
            return []

    def abort(self) -> None:
        """The receiving thread notices, and says so."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        self._sent(1)
        try:
            while frames := self._next_frames():
                send_buffers(self._socket, list(chain.from_iterable(frames)))
                self._sent(len(frames))
        except OSError:
            self.abort()

    def _sent(self, n_frames: int) -> None:
        with self._ordering:
            self._n_queued -= n_frames

    def _next_frames(self) -> list[Buffers]:
        """Wait for frames to send; none: the connection is over."""
        frames: list[Buffers] = []
        frame = self._queue.get()
        with suppress(Empty):
            while frame is not None:
                frames.append(frame)
                if len(frames) == FRAMES_PER_CALL:
                    break
                frame = self._queue.get_nowait()
        if frame is None and frames:
            self._queue.put(None)
        return frames


# --- the connection --------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)


class Service(Protocol):
    """What a connection needs of its server. Everything is called on the connection's receiving thread."""

    def admits(self, header: Header) -> bool:
        """Whether a caller of this epoch and rank is expected now."""

    def opened(self, connection: DataConnection) -> None:
        """The handshake is done. Raises `WireError` when the epoch is over meanwhile."""

    def shared(self, connection: DataConnection, descriptors: list[int]) -> list[int]:
        """A worker on this machine offers its memory; descriptors of the server's in return. Raises `WireError`."""

    def bytes_per_second(self) -> float | None:
        """How fast one connection may send."""

    def place(self, connection: DataConnection, header: Header) -> Floats:
        """Where a frame's numbers go; may wait. Raises `WireError` for one that must not come now."""

    def memory_for(self, connection: DataConnection, header: Header) -> memoryview:
        """The same place as bytes."""

    def received(self, connection: DataConnection, header: Header, payload: bytes) -> None:
        """A whole frame is there (its numbers in their place). Raises `WireError` for one that must not come."""

    def closed(self, connection: DataConnection) -> None:
        """The connection is over."""


class DataConnection:
    """A caller's connection. `epoch` and `source` are what the caller proved to be."""

    def __init__(
        self,
        connection: socket.socket,
        token: str,
        service: Service,
        admitted: Callable[[DataConnection], None] = lambda _: None,
    ) -> None:
        """`admitted` is called once, when the handshake has succeeded or failed."""
        self._socket = connection
        self._admitted = admitted
        self._token = token
        self._service = service
        self._sending = Sending(connection)
        self._compressed = memoryview(b"")
        self.epoch = 0
        self.source = 0
        self.maps_parameters = False
        """The worker at the other end reads parameters from the server's memory."""

    @property
    def is_local(self) -> bool:
        """The other end is on this machine: what it gets comes out of memory, not off a wire."""
        return self._socket.family == socket.AF_UNIX

    def send(self, header: Header, payload: memoryview | bytes = b"") -> None:
        """Send a frame, from any thread; its payload must stay as it is until it has been sent."""
        self._sending.send(header, payload)

    def send_buffers(self, buffers: Buffers) -> None:
        """The same with what `frame_buffers` made of a frame."""
        self._sending.send_buffers(buffers)

    def abort(self) -> None:
        self._sending.abort()

    def run(self) -> None:
        """Serve the caller until one end hangs up."""
        try:
            self._socket.settimeout(HANDSHAKE_SECONDS)
            try:
                with cut_after(self._socket, HANDSHAKE_SECONDS):
                    self._shake_hands()
            finally:
                self._admitted(self)
            self._socket.settimeout(None)
            self._sending.start()
            while True:
                self._receive()
        except WireError as error:
            log.info("a data connection is over (epoch %d, source %d): %s", self.epoch, self.source, error)
        except OSError as error:
            log.info("a data connection broke (epoch %d, source %d): %s", self.epoch, self.source, error)
        finally:
            self._sending.stop()
            self._service.closed(self)
            self.abort()
            self._socket.close()

    # --- handshake ---------------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        tune(self._socket)
        nonce = secret.new_nonce()
        send_buffers(self._socket, [Header(FrameType.CHALLENGE, length=len(nonce)).encode(), nonce])
        hello, payload = receive_frame(self._socket, FrameType.HELLO)
        proof, theirs = payload[: secret.PROOF_BYTES], payload[secret.PROOF_BYTES :]
        context = data_context(hello.epoch, hello.source)
        if not secret.same(proof, secret.caller_proof(self._token, nonce, theirs, context)):
            raise WireError("the caller does not know the job token")
        if not self._service.admits(hello):
            raise WireError("not a caller of the present membership epoch")
        self.epoch, self.source = hello.epoch, hello.source
        answer = secret.listener_proof(self._token, nonce, theirs, context)
        welcome = Header(FrameType.WELCOME, epoch=hello.epoch, length=len(answer))
        send_buffers(self._socket, [welcome.encode(), answer])
        self._service.opened(self)
        tune(self._socket, self._service.bytes_per_second())
        if self._socket.family == socket.AF_UNIX and self.source != NO_RANK:
            self._share()

    def _share(self) -> None:
        header, descriptors = receive_share(self._socket)
        try:
            self._check_origin(header)
            ours = self._service.shared(self, descriptors) if header.section else []
        finally:
            close_descriptors(descriptors)
        self.maps_parameters = bool(ours)
        send_share(self._socket, self.epoch, 0, ours)

    # --- frames ------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        header = receive_header(self._socket)
        self._check_origin(header)
        payload = b""
        if header.type in (FrameType.INITIAL, FrameType.PUSH):
            self._receive_numbers(header)
        elif header.payload_bytes:
            payload = self._receive_small(header)
        self._service.received(self, header, payload)

    def _receive_small(self, header: Header) -> bytes:
        if header.type not in (FrameType.FETCH, FrameType.CLIP):
            raise WireError(f"a server takes no {header.type.name}")
        data = bytearray(header.length)
        receive_into(self._socket, memoryview(data))
        return bytes(data)

    def _receive_numbers(self, header: Header) -> None:
        if header.codec is Codec.SHARED:
            return
        if header.codec is Codec.FLOAT32:
            receive_into(self._socket, self._service.memory_for(self, header))
            return
        place = self._service.place(self, header)
        payload = self._scratch(header.length)
        receive_into(self._socket, payload)
        decode(header.codec, payload, place)

    def _scratch(self, n_bytes: int) -> memoryview:
        """Memory for one compressed chunk; `place` has checked its size."""
        if len(self._compressed) < n_bytes:
            self._compressed = memoryview(bytearray(n_bytes))
        return self._compressed[:n_bytes]

    def _check_origin(self, header: Header) -> None:
        if header.epoch != self.epoch or (header.source != self.source and header.type is not FrameType.FETCH):
            raise WireError(f"a {header.type.name} of epoch {header.epoch}, source {header.source}")
