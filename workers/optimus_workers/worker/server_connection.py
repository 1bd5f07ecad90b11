"""A worker's connection to one server: one thread sends, another receives, and both block.

A chunk then costs one call each way and the system does the waiting; with events instead, each piece of a chunk that
arrives costs several calls, which on a fast network take more of the processor than the bytes do.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from optimus_workers.errors import WireError
from optimus_workers.wire.data import (
    as_bytes,
    close_descriptors,
    receive_header,
    receive_into,
    receive_share,
    send_buffers,
    send_share,
)
from optimus_workers.wire.frames import FLOAT_BYTES, HEADER_BYTES, Codec, FrameType, Header
from optimus_workers.wire.memory import FloatMemory, attach_floats
from optimus_workers.wire.ranges import Range, chunks
from optimus_workers.wire.values import ServerRange
from optimus_workers.worker.buckets import contiguous
from optimus_workers.worker.compression import Compressor


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent: the header of each frame but for its place, and chunks of the vector (None: header and payload)."""

    header: Header
    vector: Tensor | None = None
    payload: bytes = b""
    chunks: Sequence[Range] = ()
    wait: Callable[[], None] | None = None
    """Returns when the chunks are in the vector: they may still be on their way from a GPU."""

    @property
    def n_parts(self) -> int:
        """What it counts for in `begin`."""
        return 1 if self.vector is None else len(self.chunks)


class ServerConnection:
    """One exchange at a time: `begin`, then it goes on by itself until `is_complete`.

    `changed` is called, on one of the threads, when an exchange is complete or has failed.
    """

    def __init__(
        self,
        connection: socket.socket,
        server: ServerRange,
        header: Header,
        values: Tensor,
        parameter_floats: int,
        changed: Callable[[], None],
        received: Callable[[Range], None],
        compressor: Compressor | None = None,
        norm_blocks: int = 0,
    ) -> None:
        """`header`: epoch and rank of all frames. Parameters that arrive are written into `values` (the whole flat
        vector), then `received` is called. `norm_blocks`: length of the blocks whose squares the server sends this
        worker; 0: it does not."""
        self.connection = connection
        self.address = server.address
        self.first, self.end = server.first, server.end
        self.chunks = chunks(server.first, server.end, parameter_floats)
        self._ends = dict(self.chunks)
        self._header = header
        self._values = values
        # Views of bytes are made much faster than those of tensors.
        self._value_bytes = as_bytes(values.numpy())
        self._sent_vector: Tensor | None = None
        self._sent_bytes = memoryview(b"")
        self._parameter_floats = parameter_floats
        self._changed = changed
        self._received = received
        self._compressor = compressor
        self._outgoing: SimpleQueue[Outgoing | None] = SimpleQueue()
        self._n_unsent = 0  # chunks, and frames without one
        self._writable = threading.Event()  # parameters may be written to
        self._writable.set()
        self._due: set[int] = set()
        self._parameters: list[Tensor] = []  # the server's memory
        self._shares_push = False
        n_floats = min(server.end, parameter_floats) - server.first
        self.n_squares = max(0, -(-n_floats // norm_blocks)) if norm_blocks else 0
        """Sums of squares that this server sends for each push; 0: it does not."""
        self.squares: list[float] | None = None
        """The squares of the present exchange, once they are there."""
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), name="server-connection", daemon=True)
            for loop in (self._send, self._receive)
        ]
        self.error: BaseException | None = None
        """What ended the connection."""
        self.version = 0
        """Version of the parameters that came last."""
        self.n_sent = 0
        self.n_received = 0
        self.sent_at = 0.0
        self.first_byte_at = 0.0
        self.received_at = 0.0

    @property
    def is_complete(self) -> bool:
        return not (self._n_unsent or self._due)

    def share(self, push: FloatMemory | None, *, maps_parameters: bool) -> None:
        """Exchange memory with a server on this machine, once, before `start`.

        `push`: where this worker's pushes lie (None: they go through the socket). Without `maps_parameters` the
        server sends parameters instead of leaving them in its memory. Raises `OSError` or `WireError`.
        """
        ours = [] if push is None or push.descriptor is None else [push.descriptor]
        send_share(self.connection, self._header.epoch, self._header.source, ours, maps=maps_parameters)
        _, theirs = receive_share(self.connection)
        try:
            n_floats = self.end - self.first
            self._parameters = [torch.from_numpy(attach_floats(descriptor, n_floats)) for descriptor in theirs]
        finally:
            close_descriptors(theirs)
        self._shares_push = bool(ours)

    def start(self) -> None:
        self.connection.settimeout(None)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Hang up, after `abort`."""
        self._outgoing.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self.connection.close()

    def begin(self, n_parts: int, *, writable: bool = True) -> None:
        """Expect all of the server's parameters. So many chunks and frames without one are going to be sent.

        Not `writable`: the parameters are in use, what arrives has to wait for `allow_writing`.
        """
        self.first_byte_at = 0.0
        self.squares = None
        self._due = {first for first, _ in self.chunks}
        self._n_unsent = n_parts
        if not writable:
            self._writable.clear()

    def send(self, frame: Outgoing) -> None:
        """Send this as soon as what came before has been sent."""
        self._outgoing.put(frame)

    def allow_writing(self) -> None:
        """The parameters are not in use any more. Safe from other threads."""
        self._writable.set()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:  # noqa: BLE001 - raised again where the exchange is waited for
            self.error = self.error or error
        self._changed()

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while (frame := self._outgoing.get()) is not None:
            self._send_frames(frame)
            self._n_unsent -= frame.n_parts
            self.sent_at = time.perf_counter()
            if self.is_complete:
                self._changed()

    def _send_frames(self, frame: Outgoing) -> None:
        if frame.wait is not None:
            frame.wait()
        if frame.vector is None:
            self._send_buffers([frame.header.encode(), frame.payload])
        elif self._shares_push and frame.header.type is FrameType.PUSH:
            for first, end in contiguous(frame.chunks):
                length = FLOAT_BYTES * (end - first)
                self._send_buffers([frame.header.encode_at(first, length, Codec.SHARED)])
        else:
            for chunk in frame.chunks:
                self._send_chunk(frame.header, chunk, frame.vector)

    def _send_chunk(self, header: Header, chunk: Range, vector: Tensor) -> None:
        first, end = chunk
        codec = Codec.FLOAT32
        if self._compressor is not None and header.type is FrameType.PUSH and first < self._parameter_floats:
            codec, encoded = self._compressor.encode(vector[first:end], first)
            payload = as_bytes(encoded)
        else:
            payload = self._bytes_of(vector)[FLOAT_BYTES * first : FLOAT_BYTES * end]
        self._send_buffers([header.encode_at(first, len(payload), codec), payload])

    def _bytes_of(self, vector: Tensor) -> memoryview:
        """The whole vector: the same one at almost every step."""
        if self._sent_vector is not vector:
            self._sent_vector, self._sent_bytes = vector, as_bytes(vector.numpy())
        return self._sent_bytes

    def _send_buffers(self, buffers: Sequence[memoryview | bytes]) -> None:
        self.n_sent += send_buffers(self.connection, buffers)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Frame by frame. While nothing is due, a byte that arrives is the end of the connection or a mistake."""
        while True:
            header = receive_header(self.connection)
            if header.type is FrameType.NORMS:
                self._receive_squares(header)
                continue
            self.first_byte_at = self.first_byte_at or time.perf_counter()
            covered = self._covered(header)
            first, end = header.offset, header.offset + header.length // FLOAT_BYTES
            self._writable.wait()
            if header.codec is Codec.SHARED:
                source = self._parameters[header.section]
                self._values[first:end].copy_(source[first - self.first : end - self.first])
            else:
                receive_into(self.connection, self._value_bytes[FLOAT_BYTES * first : FLOAT_BYTES * end])
            self._received((first, end))
            self.n_received += HEADER_BYTES + header.length
            self.version = header.version
            self.received_at = time.perf_counter()
            self._due -= covered
            if self.is_complete:
                self._changed()

    def _receive_squares(self, header: Header) -> None:
        if self.squares is not None or header.length != 8 * self.n_squares or header.epoch != self._header.epoch:
            raise WireError(f"norms of {header.length} bytes, epoch {header.epoch}, were not due")
        squares = np.empty(self.n_squares)
        receive_into(self.connection, as_bytes(squares))
        self.n_received += HEADER_BYTES + header.length
        self.squares = squares.tolist()
        self._changed()

    def _covered(self, header: Header) -> set[int]:
        """The chunks that a frame is about: one, or several in a row if they lie in shared memory."""
        first, end = header.offset, header.offset + header.length // FLOAT_BYTES
        if header.codec is Codec.SHARED:
            covered = {start for start in self._due if first <= start < end}
            legal = first in covered and max(self._ends[start] for start in covered) == end
            legal = legal and header.section < len(self._parameters)
        else:
            covered = {first}
            legal = first in self._due and self._ends[first] == end
        if header.type is not FrameType.PARAMETERS or header.epoch != self._header.epoch or not legal:
            raise WireError(f"a {header.type.name} of epoch {header.epoch} at {header.offset} was not due")
        return covered
