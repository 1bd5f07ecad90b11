"""One data connection of a server: handshake, then frames, received straight into the memory that they are for."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from optimus_workers.wire import secret
from optimus_workers.wire.data import data_context
from optimus_workers.wire.errors import WireError
from optimus_workers.wire.frames import HEADER_BYTES, FrameType, Header, decode_header

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""How long a stranger may keep a connection."""


class Service(Protocol):
    """What a connection needs of its server."""

    def admits(self, header: Header) -> bool:
        """Whether a caller of this epoch and rank is expected now."""

    def opened(self, connection: DataConnection) -> None:
        """The handshake is done."""

    def destination(self, connection: DataConnection, header: Header) -> memoryview:
        """Where a tensor frame's payload goes. Raises `WireError` for one that must not come now."""

    def received(self, connection: DataConnection, header: Header, payload: memoryview) -> None:
        """A whole frame is there. Raises `WireError` for one that must not come."""

    def closed(self, connection: DataConnection) -> None:
        """The connection is over."""


class DataConnection(asyncio.BufferedProtocol):
    """A caller's connection. `epoch` and `source` are what the caller proved to be, once `is_open`."""

    def __init__(self, token: str, service: Service) -> None:
        self._token = token
        self._service = service
        self._nonce = secret.new_nonce()
        self._header: Header | None = None
        self._target = memoryview(bytearray(HEADER_BYTES))
        self._n_received = 0
        self.is_open = False
        self.epoch = 0
        self.source = 0

    def send(self, header: Header, payload: memoryview | bytes = b"") -> None:
        self._transport.writelines([header.encode(), payload])

    def abort(self) -> None:
        self._transport.abort()

    # --- called by asyncio -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._give_up)
        self.send(Header(FrameType.CHALLENGE, length=len(self._nonce)), self._nonce)

    def _give_up(self) -> None:
        if not self.is_open:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._service.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        return self._target[self._n_received :]

    def buffer_updated(self, nbytes: int) -> None:
        self._n_received += nbytes
        if self._n_received < len(self._target):
            return
        try:
            self._complete()
        except WireError as error:
            log.warning("closing a data connection (epoch %d, source %d): %s", self.epoch, self.source, error)
            self.abort()

    def _complete(self) -> None:
        """The header or the payload that was being received is whole."""
        if self._header is None:
            header = decode_header(self._target)
            if header.length:
                self._expect(header, self._place(header))
                return
            self._handle(header, memoryview(b""))
        else:
            self._handle(self._header, self._target)
        self._expect(None, memoryview(bytearray(HEADER_BYTES)))

    def _expect(self, header: Header | None, target: memoryview) -> None:
        self._header, self._target, self._n_received = header, target, 0

    def _place(self, header: Header) -> memoryview:
        if not self.is_open and header.type is not FrameType.HELLO:
            raise WireError(f"{header.type.name} before the handshake")
        if self.is_open and header.type is not FrameType.FETCH:
            self._check_origin(header)
            return self._service.destination(self, header)
        return memoryview(bytearray(header.length))

    def _handle(self, header: Header, payload: memoryview) -> None:
        if not self.is_open:
            self._open(header, payload)
            return
        self._check_origin(header)
        self._service.received(self, header, payload)

    def _check_origin(self, header: Header) -> None:
        if header.epoch != self.epoch or (header.source != self.source and header.type is not FrameType.FETCH):
            raise WireError(f"a {header.type.name} of epoch {header.epoch}, source {header.source}")

    def _open(self, header: Header, payload: memoryview) -> None:
        if header.type is not FrameType.HELLO:
            raise WireError(f"{header.type.name} before the handshake")
        proof, theirs = bytes(payload[: secret.PROOF_BYTES]), bytes(payload[secret.PROOF_BYTES :])
        context = data_context(header.epoch, header.source)
        if not secret.same(proof, secret.caller_proof(self._token, self._nonce, theirs, context)):
            raise WireError("the caller does not know the job token")
        if not self._service.admits(header):
            raise WireError("not a caller of the present membership epoch")
        self.is_open, self.epoch, self.source = True, header.epoch, header.source
        answer = secret.listener_proof(self._token, self._nonce, theirs, context)
        self.send(Header(FrameType.WELCOME, epoch=header.epoch, length=len(answer)), answer)
        self._service.opened(self)
