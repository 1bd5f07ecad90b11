"""A worker's connection to one server, without blocking: what is still to be sent, what is still to come."""

from __future__ import annotations

import socket
from collections import deque

from torch import Tensor

from optimus_workers.ranges import Range, chunks
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.errors import ConnectionOver, WireError
from optimus_workers.wire.frames import HEADER_BYTES, FrameType, Header, decode_header
from optimus_workers.wire.messages import ServerRange

BUFFERS_PER_CALL = 16
"""Buffers handed to the kernel in one call: header and payload leave together, small messages in one packet."""


class Link:
    """One exchange at a time: `push` or `pull`, then `write` and `read` until `is_complete`."""

    def __init__(
        self,
        connection: socket.socket,
        server: ServerRange,
        epoch: int,
        rank: int,
        values: Tensor,
        parameter_floats: int,
    ) -> None:
        """Parameters that arrive are written into `values` (the whole flat vector)."""
        self.connection = connection
        self.chunks = chunks(server.first, server.end, parameter_floats)
        self._epoch, self._rank = epoch, rank
        self._values = values
        self._outgoing: deque[memoryview] = deque()
        self._due: dict[int, Range] = {}
        self._header_bytes = memoryview(bytearray(HEADER_BYTES))
        self._header: Header | None = None
        self._target = self._header_bytes
        self._n_received = 0
        self.version = 0
        """Of the parameters that came last."""
        self.n_sent = 0
        self.n_received = 0

    @property
    def is_sending(self) -> bool:
        return bool(self._outgoing)

    @property
    def is_complete(self) -> bool:
        return not (self._outgoing or self._due)

    def push(self, kind: FrameType, step: int, version: int, learning_rate: float, vector: Tensor) -> None:
        """Queue this server's range of `vector`."""
        for first, end in self.chunks:
            payload = as_bytes(vector[first:end])
            header = Header(
                kind, epoch=self._epoch, source=self._rank, step=step, offset=first, length=len(payload),
                version=version, learning_rate=learning_rate,
            )  # fmt: skip
            self._outgoing.append(memoryview(header.encode()))
            self._outgoing.append(payload)

    def pull(self) -> None:
        """Queue the question for the server's parameters."""
        self._outgoing.append(memoryview(Header(FrameType.PULL, epoch=self._epoch, source=self._rank).encode()))

    def expect(self) -> None:
        """All of the server's parameters are to come."""
        self._due = {chunk[0]: chunk for chunk in self.chunks}

    def write(self) -> None:
        """Send as much as the network takes now. Raises `OSError`."""
        while self._outgoing:
            buffers = [self._outgoing[index] for index in range(min(BUFFERS_PER_CALL, len(self._outgoing)))]
            try:
                n_bytes = self.connection.sendmsg(buffers)
            except BlockingIOError:
                return
            self.n_sent += n_bytes
            self._drop(n_bytes)

    def _drop(self, n_bytes: int) -> None:
        while n_bytes:
            buffer = self._outgoing.popleft()
            if n_bytes < len(buffer):
                self._outgoing.appendleft(buffer[n_bytes:])
                return
            n_bytes -= len(buffer)

    def read(self) -> None:
        """Take in what is there. Raises `OSError`, or `WireError` for what must not come."""
        while self._due:
            try:
                n_bytes = self.connection.recv_into(self._target[self._n_received :])
            except BlockingIOError:
                return
            if not n_bytes:
                raise ConnectionOver("a server hung up")
            self._n_received += n_bytes
            self.n_received += n_bytes
            if self._n_received == len(self._target):
                self._complete()

    def _complete(self) -> None:
        self._n_received = 0
        if self._header is None:
            self._header = decode_header(self._header_bytes)
            self._target = self._place(self._header)
            return
        self.version = self._header.version
        del self._due[self._header.offset]
        self._header, self._target = None, self._header_bytes

    def _place(self, header: Header) -> memoryview:
        chunk = self._due.get(header.offset)
        expected = header.type is FrameType.PARAMETERS and header.epoch == self._epoch
        if not expected or chunk is None or chunk[1] - chunk[0] != header.n_floats:
            raise WireError(f"a {header.type.name} of epoch {header.epoch} at {header.offset} was not due")
        return as_bytes(self._values[chunk[0] : chunk[1]])
