"""One data connection of a server: handshake, then frames, received straight into the memory that they are for.

This thread receives, and sums, updates and sends what it completed. It blocks while it receives, so that a chunk costs
one call; what does not leave at once is sent by another thread (see `sending`).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from optimus_workers.server.sending import Buffers, Sending
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
)
from optimus_workers.wire.errors import WireError
from optimus_workers.wire.frames import Codec, FrameType, Header
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.sockets import HANDSHAKE_SECONDS, cut_after, tune

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

    def room(self, connection: DataConnection, header: Header) -> memoryview:
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
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

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
            receive_into(self._socket, self._service.room(self, header))
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
