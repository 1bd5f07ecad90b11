"""What a server does with the frames that arrive on its data connections."""

from __future__ import annotations

import zlib

from optimus_workers.pacing import CpuPacer
from optimus_workers.ranges import Range, chunks
from optimus_workers.server.connection import DataConnection
from optimus_workers.server.fetching import FETCH_RANGE, find_state
from optimus_workers.server.shard import AsyncShard, RangeState, Shard
from optimus_workers.wire.data import NO_RANK, as_bytes
from optimus_workers.wire.errors import WireError
from optimus_workers.wire.frames import FrameType, Header
from optimus_workers.wire.messages import Holding


class ShardService:
    """The shard that is being served, the one that is about to be, and who is connected.

    `epoch` is the fence: frames and callers of another membership epoch are refused.
    """

    def __init__(self, pacer: CpuPacer) -> None:
        self.epoch = 0
        self.shard: Shard | None = None
        self.candidate: Shard | None = None
        """Of an epoch that is being formed. `shard` stays as it is until every server has its candidate."""
        self._connections: set[DataConnection] = set()
        self._workers: dict[int, DataConnection] = {}
        self._waiting_pulls: list[DataConnection] = []
        self._pacer = pacer

    def halt(self, epoch: int) -> tuple[Holding, ...]:
        """Stop serving older epochs; what is held."""
        self.epoch = epoch
        for connection in list(self._connections):
            connection.abort()
        self._connections.clear()
        self._workers.clear()
        self._waiting_pulls.clear()
        shards = [shard for shard in (self.shard, self.candidate) if shard is not None]
        return tuple(holding for shard in shards for holding in shard.holdings())

    def release(self, epoch: int) -> None:
        """Serve the candidate of this epoch; what was before is no longer needed."""
        if self.candidate is not None and self.candidate.epoch == epoch:
            self.shard, self.candidate = self.candidate, None

    def states(self) -> list[RangeState]:
        return [state for shard in (self.candidate, self.shard) if shard is not None for state in shard.states()]

    # --- connection.Service ------------------------------------------------------------------------------------------

    def admits(self, header: Header) -> bool:
        return header.epoch == self.epoch

    def opened(self, connection: DataConnection) -> None:
        self._connections.add(connection)
        if connection.source == NO_RANK:
            return
        # A worker knows of this epoch only once every server has its candidate: as good as the coordinator's word,
        # which may still be on its way.
        self.release(connection.epoch)
        self._workers[connection.source] = connection

    def closed(self, connection: DataConnection) -> None:
        self._connections.discard(connection)
        self._waiting_pulls = [waiting for waiting in self._waiting_pulls if waiting is not connection]
        if self._workers.get(connection.source) is connection:
            del self._workers[connection.source]

    def destination(self, connection: DataConnection, header: Header) -> memoryview:
        if header.type not in (FrameType.INITIAL, FrameType.PUSH):
            raise WireError(f"a server takes no {header.type.name}")
        return self._served(connection).destination(header)

    def received(self, connection: DataConnection, header: Header, payload: memoryview) -> None:
        match header.type:
            case FrameType.PUSH:
                self._push_received(connection, header)
            case FrameType.INITIAL:
                if self._served(connection).initial_received(header):
                    self._answer_waiting_pulls()
            case FrameType.PULL:
                self._pull_received(connection)
            case FrameType.FETCH:
                self._fetch_received(connection, header, payload)
            case _:
                raise WireError(f"a server takes no {header.type.name}")

    def _served(self, connection: DataConnection) -> Shard:
        if self.shard is None or self.shard.epoch != connection.epoch:
            raise WireError("this server serves another membership epoch")
        return self.shard

    def _push_received(self, connection: DataConnection, header: Header) -> None:
        shard = self._served(connection)
        is_async = isinstance(shard, AsyncShard)
        updated = False
        for chunk in shard.push_received(header):
            updated = True
            version = shard.version if is_async else header.step + 1
            for receiver in [connection] if is_async else list(self._workers.values()):
                self._send_parameters(receiver, shard, chunk, version)
        if updated:
            self._pacer.pace()

    def _pull_received(self, connection: DataConnection) -> None:
        self._waiting_pulls.append(connection)
        if self._served(connection).is_ready:
            self._answer_waiting_pulls()

    def _answer_waiting_pulls(self) -> None:
        waiting, self._waiting_pulls = self._waiting_pulls, []
        for connection in waiting:
            shard = self._served(connection)
            for chunk in shard.chunks:
                self._send_parameters(connection, shard, chunk, shard.version)

    def _send_parameters(self, receiver: DataConnection, shard: Shard, chunk: Range, version: int) -> None:
        payload: memoryview | bytes = as_bytes(shard.parameters(chunk))
        if isinstance(shard, AsyncShard):
            payload = bytes(payload)  # the next push is applied in place, maybe before this has left
        header = Header(FrameType.PARAMETERS, epoch=shard.epoch, offset=chunk[0], length=len(payload), version=version)
        receiver.send(header, payload)

    def _fetch_received(self, connection: DataConnection, header: Header, payload: memoryview) -> None:
        first, end = FETCH_RANGE.unpack(payload)
        try:
            state = find_state(self.states(), header.version, first, end)
        except WireError:
            connection.send(Header(FrameType.MISSING, epoch=connection.epoch))
            return
        parameter_floats = self._parameter_floats()
        for section, whole in enumerate(state.sections):
            for chunk_first, chunk_end in chunks(first, end, parameter_floats):
                piece = as_bytes(whole[chunk_first - state.first : chunk_end - state.first])
                head = Header(
                    FrameType.PIECE, epoch=connection.epoch, offset=chunk_first, length=len(piece),
                    version=state.version, section=section, crc=zlib.crc32(piece),
                )  # fmt: skip
                connection.send(head, piece)

    def _parameter_floats(self) -> int:
        shard = self.shard or self.candidate
        assert shard is not None, "something was found, so there is a shard"
        return shard.parameter_floats
