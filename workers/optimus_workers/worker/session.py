"""A worker's part in one membership epoch: its connections to the servers, and the exchange of a step over them."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from torch import Tensor

from optimus_workers.errors import ConnectionOver
from optimus_workers.wire.data import connect
from optimus_workers.wire.frames import CLIP_COEFFICIENT, FrameType, Header
from optimus_workers.wire.memory import FloatMemory
from optimus_workers.wire.messages import Join
from optimus_workers.wire.norms import clip_coefficient
from optimus_workers.wire.ranges import Range, block_floats
from optimus_workers.wire.sockets import Transport, is_cut, share_of_rate
from optimus_workers.wire.values import Address, ServerRange
from optimus_workers.worker.buckets import Buckets, push_order
from optimus_workers.worker.compression import Compressor
from optimus_workers.worker.server_connection import Outgoing, ServerConnection
from optimus_workers.worker.staging import Staging

CHECK_SECONDS = 2.0
"""How often a worker that waits looks whether its servers can still be reached."""


@dataclass(frozen=True, slots=True)
class DataOptions:
    """How a worker talks to its servers."""

    transport: Transport = Transport.AUTO
    bytes_per_second: float | None = None
    """What this task may send per second over all connections; None: no limit."""


@dataclass(slots=True)
class Exchanged:
    """One push and pull over all servers at once."""

    push_seconds: float = 0.0
    """From the end of computing until the last byte was handed to the network."""
    wait_seconds: float = 0.0
    """From then until the first byte of new parameters: other workers and the update."""
    pull_seconds: float = 0.0
    """From then until the last byte."""
    sent_bytes: int = 0
    received_bytes: int = 0
    version: int = 0
    """Version of the parameters that came; async mode: the oldest over the servers."""
    ended_at: float = 0.0
    """`time.perf_counter` when all was there."""


class Session:
    """Open until `abort`, which another thread may call at any time to end a transfer that will not end by itself."""

    def __init__(
        self,
        join: Join,
        parameter_floats: int,
        options: DataOptions = DataOptions(),
        compressor: Compressor | None = None,
        max_gradient_norm: float | None = None,
        parameters: Sequence[Range] = (),
        staging: Staging | None = None,
        gradient_period: int = 0,
    ) -> None:
        """`max_gradient_norm`: of the gradients that the servers sum; worker 0 sends them the factor.

        `parameters`: the range of each in the flat vector, in the order of the model: chunks then leave in the reverse
        of it. `staging`: what lies between the vector and the model. `gradient_period`: the steps after which worker 0
        is sent the square of the gradient in any case.
        """
        self.join = join
        self._options = options
        self._compressor = compressor
        self.version = -1
        """Version of the worker's parameters; -1: they are not whole."""
        self._parameter_floats = parameter_floats
        self.lost: Address | None = None
        """The server whose connection failed."""
        self._max_gradient_norm = None if join.is_async or join.rank else max_gradient_norm
        self._gradient_period = 0 if join.is_async or join.rank else gradient_period
        self._parameters = parameters
        self._staging = staging
        self._buckets: list[Buckets] = []
        self._step = 0
        self._started_at = 0.0
        self._counted = 0, 0
        self._servers: list[ServerConnection] = []
        self._header = Header(FrameType.PUSH, epoch=join.epoch, source=join.rank)
        self._changed = threading.Event()  # set by the connections
        self._aborted = False

    def open(self, token: str, values: Tensor, push: FloatMemory | None = None) -> None:
        """Connect to all servers. `push`: the memory that pushes lie in. Raises `OSError` or `WireError`."""
        for server_range in self.join.servers:
            if server_range.first == server_range.end:
                continue  # more servers than 16-float units
            self.lost = server_range.address
            server = self._connect(server_range, token, values)
            if server.connection.family == socket.AF_UNIX:
                server.share(push if self._compressor is None and self._maps else None, maps_parameters=self._maps)
            server.start()
            self.lost = None
            if self._aborted:
                raise ConnectionOver("the session was aborted")

    @property
    def _maps(self) -> bool:
        return self._options.transport is Transport.AUTO

    def _connect(self, server_range: ServerRange, token: str, values: Tensor) -> ServerConnection:
        join, options = self.join, self._options
        connection = connect(
            server_range.address,
            token,
            join.epoch,
            join.rank,
            local=server_range.local,
            transport=options.transport,
            bytes_per_second=share_of_rate(options.bytes_per_second, join.n_workers, len(join.servers)),
        )
        blocks = block_floats(join.servers[-1].end) if self._clips or self._gradient_period else 0
        server = ServerConnection(
            connection,
            server_range,
            self._header,
            values,
            self._parameter_floats,
            self._changed.set,
            self._received,
            self._compressor,
            blocks,
        )
        if self._parameters:
            server.chunks = tuple(push_order(server.chunks, self._parameters, self._parameter_floats))
        self._servers.append(server)
        return server

    def _received(self, part: Range) -> None:
        if self._staging is not None:
            self._staging.received(part)

    def abort(self) -> None:
        """End what is going on. Safe from other threads."""
        self._aborted = True
        for server in list(self._servers):
            with suppress(OSError):
                server.connection.shutdown(socket.SHUT_RDWR)
            server.allow_writing()

    def close(self) -> None:
        """Hang up."""
        self.abort()
        for server in self._servers:
            server.close()
        self._servers.clear()

    def fetch(self, values: Tensor) -> Exchanged:
        """Get all parameters, after bringing the initial ones if this worker is to do so."""
        initial = self.join.brings_parameters
        self._begin()
        for server in self._servers:
            server.begin(1 + len(server.chunks) * initial)
            if initial:
                server.send(Outgoing(replace(self._header, type=FrameType.INITIAL), values, chunks=server.chunks))
            server.send(Outgoing(replace(self._header, type=FrameType.PULL)))
        self._wait(self._all_complete)
        return self._exchanged()

    def begin_push(self, step: int, learning_rate: float, push: Tensor) -> None:
        """Announce what is being computed with the present parameters; they stay as they are until `finish_push`."""
        header = replace(self._header, step=step, version=self.version, learning_rate=learning_rate)
        self._step = step
        self._begin()
        self._buckets = [self._bucketed(server, header, push) for server in self._servers]

    def _bucketed(self, server: ServerConnection, header: Header, push: Tensor) -> Buckets:
        staging = self._staging

        def send(chunks: Sequence[Range]) -> None:
            wait = None if staging is None else staging.ready(chunks)
            server.send(Outgoing(header, push, chunks=chunks, wait=wait))

        follows = self._clips and server.n_squares > 0
        server.begin(len(server.chunks) + follows, writable=staging is not None and staging.can_receive_early)
        return Buckets(server.chunks, self._parameters, self._parameter_floats, send)

    def gradient_ready(self, parameter: int) -> None:
        """The gradient of this parameter (its place in `parameters`) is final: send what can be sent."""
        for buckets in self._buckets:
            buckets.gradient_ready(parameter)

    def finish_push(self) -> None:
        """All that is pushed is there, and the present parameters are not in use any more."""
        self._started_at = time.perf_counter()
        for server, buckets in zip(self._servers, self._buckets, strict=True):
            buckets.finish()
            server.allow_writing()

    @property
    def needs_attention(self) -> bool:
        """`wait` should be called by now: the parameters are here, a connection is lost, or others wait."""
        if any(server.error is not None for server in self._servers) or self._all_complete():
            return True
        return self._clips and self._all_squares_sent()

    def wait(self) -> Exchanged:
        """What came of a push, once the new parameters are here. Raises what ended a connection."""
        if self._clips:
            self._wait(self._all_squares_sent)
            self._clip(self._step)
        self._wait(self._all_complete)
        return self._exchanged()

    @property
    def gradient_square(self) -> float | None:
        """|gradient of the step's whole batch|², before clipping, where the servers sent it."""
        sent = [server.squares for server in self._servers if server.n_squares]
        if not sent or any(squares is None for squares in sent):
            return None
        return math.fsum(chain.from_iterable(squares for squares in sent if squares is not None))

    @property
    def _clips(self) -> bool:
        return self._max_gradient_norm is not None

    def _all_squares_sent(self) -> bool:
        return all(server.squares is not None for server in self._servers if server.n_squares)

    def _all_complete(self) -> bool:
        return all(server.is_complete for server in self._servers)

    def _begin(self) -> None:
        self._started_at = time.perf_counter()
        self._counted = self._counts()
        self.version = -1

    def _exchanged(self) -> Exchanged:
        started_at, (sent, received) = self._started_at, self._counted
        ended_at = max([started_at, *(server.received_at for server in self._servers)])
        sent_at = max([started_at, *(server.sent_at for server in self._servers)])
        first_byte_at = max(sent_at, min((server.first_byte_at for server in self._servers), default=ended_at))
        now_sent, now_received = self._counts()
        self.version = min((server.version for server in self._servers), default=0)
        return Exchanged(
            push_seconds=sent_at - started_at,
            wait_seconds=first_byte_at - sent_at,
            pull_seconds=max(0.0, ended_at - first_byte_at),
            sent_bytes=now_sent - sent,
            received_bytes=now_received - received,
            version=self.version,
            ended_at=ended_at,
        )

    def _clip(self, step: int) -> None:
        """Send the servers the factor of the gradient, now that each has sent the squares of its part."""
        assert self._max_gradient_norm is not None, "there is a norm to clip to"
        clipping = [server for server in self._servers if server.squares is not None]
        squares = chain.from_iterable(server.squares for server in clipping if server.squares is not None)
        payload = CLIP_COEFFICIENT.pack(clip_coefficient(squares, self._max_gradient_norm))
        header = replace(self._header, type=FrameType.CLIP, step=step, length=len(payload))
        for server in clipping:
            server.send(Outgoing(header, payload=payload))

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until `is_over`. Raises what ended one of the connections."""
        while True:
            self._changed.clear()
            for server in self._servers:
                if server.error is not None:
                    self.lost = server.address
                    raise server.error
            if is_over():
                return
            if not self._changed.wait(CHECK_SECONDS):
                self._check_reachable([server for server in self._servers if not server.is_complete])

    def _check_reachable(self, servers: Sequence[ServerConnection]) -> None:
        for server in servers:
            if is_cut(server.connection):
                self.lost = server.address
                raise ConnectionOver(f"the server at {server.address[0]} does not answer")

    def _counts(self) -> tuple[int, int]:
        return sum(server.n_sent for server in self._servers), sum(server.n_received for server in self._servers)
