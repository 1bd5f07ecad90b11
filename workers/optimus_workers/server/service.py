"""What a server does with the frames that arrive on its data connections."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Sequence

from optimus_workers.errors import WireError
from optimus_workers.server.connection import DataConnection, frame_buffers
from optimus_workers.server.range_state import FETCH_RANGE, RangeState, find_state
from optimus_workers.server.shard import AsyncShard, Norms, Ready, Shard
from optimus_workers.server.sync_shard import ClippingShard, SyncShard
from optimus_workers.telemetry.usage import CpuPacer
from optimus_workers.wire.data import NO_RANK, as_bytes
from optimus_workers.wire.frames import CLIP_COEFFICIENT, FLOAT_BYTES, Codec, FrameType, Header
from optimus_workers.wire.memory import Floats, attach_floats
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.ranges import Range, chunks
from optimus_workers.wire.values import Holding


class ShardService:
    """The shard that is being served, the one that is about to be, and the open connections.

    `epoch` is the fence: frames and callers of another membership epoch are refused. `_lock` guards everything but the
    shards, which guard themselves.
    """

    def __init__(self, pacer: CpuPacer) -> None:
        self.epoch = 0
        self.shard: Shard | None = None
        self.candidate: Shard | None = None
        """The shard of an epoch that is being formed. `shard` stays as it is until every server has its candidate."""
        self.connection_rate: float | None = None
        self._lock = threading.RLock()
        self._connections: set[DataConnection] = set()
        self._workers: dict[int, DataConnection] = {}
        self._waiting_pulls: list[DataConnection] = []
        self._pacer = pacer

    def halt(self, epoch: int) -> tuple[Holding, ...]:
        """Stop serving older epochs; what is held. It stays as it is from then on."""
        with self._lock:
            self.epoch = epoch
            connections = list(self._connections)
            self._connections.clear()
            self._workers.clear()
            self._waiting_pulls.clear()
            shards = [shard for shard in (self.shard, self.candidate) if shard is not None]
        for connection in connections:
            connection.abort()
        for shard in shards:
            shard.stop()
        return tuple(holding for shard in shards for holding in shard.holdings())

    def release(self, epoch: int) -> None:
        """Serve the candidate of this epoch; what was before is no longer needed."""
        with self._lock:
            if self.candidate is not None and self.candidate.epoch == epoch:
                self.shard, self.candidate = self.candidate, None

    def states(self) -> list[RangeState]:
        with self._lock:
            shards = (self.candidate, self.shard)
        return [state for shard in shards if shard is not None for state in shard.states()]

    # --- connection.Service ------------------------------------------------------------------------------------------

    def admits(self, header: Header) -> bool:
        return header.epoch == self.epoch

    def bytes_per_second(self) -> float | None:
        return self.connection_rate

    def opened(self, connection: DataConnection) -> None:
        with self._lock:
            if connection.epoch != self.epoch:
                raise WireError("the membership epoch is over")
            self._connections.add(connection)
            if connection.source == NO_RANK:
                return
            # A worker knows of this epoch only once every server has its candidate: that is as good as the
            # coordinator's `Release`, which may still be on its way.
            self.release(connection.epoch)
            self._workers[connection.source] = connection

    def shared(self, connection: DataConnection, descriptors: list[int]) -> list[int]:
        shard = self._served(connection)
        if descriptors:
            shard.attach(connection.source, attach_floats(descriptors[0], shard.total_floats))
        memories = [state.memory for state in shard.memories if state.memory is not None]
        ours = [memory.descriptor for memory in memories if memory.descriptor is not None]
        return ours if len(ours) == len(shard.memories) else []

    def closed(self, connection: DataConnection) -> None:
        with self._lock:
            self._connections.discard(connection)
            self._waiting_pulls = [waiting for waiting in self._waiting_pulls if waiting is not connection]
            if self._workers.get(connection.source) is connection:
                del self._workers[connection.source]

    def place(self, connection: DataConnection, header: Header) -> Floats:
        return self._served(connection).place(header)

    def memory_for(self, connection: DataConnection, header: Header) -> memoryview:
        return self._served(connection).memory_for(header)

    def received(self, connection: DataConnection, header: Header, payload: bytes) -> None:
        match header.type:
            case FrameType.PUSH:
                shard = self._served(connection)
                self._send_ready(connection, shard, header, shard.push_received(header))
            case FrameType.CLIP:
                shard = self._served(connection)
                (coefficient,) = CLIP_COEFFICIENT.unpack(payload)
                if connection.source != 0:
                    raise WireError(f"worker {connection.source} must not set the clipping")
                self._send_ready(connection, shard, header, shard.clip_received(header, coefficient))
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
        shard = self.shard
        if shard is None or shard.epoch != connection.epoch:
            raise WireError("this server serves another membership epoch")
        return shard

    def _send_ready(self, connection: DataConnection, shard: Shard, header: Header, ready: Iterable[Ready]) -> None:
        """Send what comes of a frame while it comes."""
        is_async = shard.is_async
        worked = False
        for part in ready:
            worked = True
            if isinstance(part, Norms):
                self._send_norms(shard, header.step, part)
                continue
            version = shard.version if is_async else header.step + 1
            self._send_parameters([connection] if is_async else self._all_workers(), shard, part, version)
        if worked:
            self._pacer.pace()

    def _send_norms(self, shard: Shard, step: int, norms: Norms) -> None:
        with self._lock:
            first = self._workers.get(0)
        if first is not None:  # otherwise it is lost, and the step is repeated in the next membership
            length = len(norms.squares)
            first.send(Header(FrameType.NORMS, epoch=shard.epoch, step=step, length=length), norms.squares)

    def _all_workers(self) -> list[DataConnection]:
        with self._lock:
            return list(self._workers.values())

    def _pull_received(self, connection: DataConnection) -> None:
        with self._lock:
            self._waiting_pulls.append(connection)
        if self._served(connection).is_ready:
            self._answer_waiting_pulls()

    def _answer_waiting_pulls(self) -> None:
        with self._lock:
            waiting, self._waiting_pulls = self._waiting_pulls, []
        for connection in waiting:
            shard = self._served(connection)
            with shard.reading():
                self._send_parameters([connection], shard, (shard.first, shard.end), shard.version)

    def _send_parameters(self, receivers: Sequence[DataConnection], shard: Shard, part: Range, version: int) -> None:
        mapping = [receiver for receiver in receivers if receiver.maps_parameters]
        if mapping:
            _, memory = shard.locate(part)
            header = Header(
                FrameType.PARAMETERS, epoch=shard.epoch, offset=part[0], length=FLOAT_BYTES * (part[1] - part[0]),
                version=version, section=memory, codec=Codec.SHARED,
            )  # fmt: skip
            for receiver in mapping:
                receiver.send(header)
        if len(mapping) == len(receivers):
            return
        for chunk in shard.chunks_of(part):
            payload: memoryview | bytes = shard.payload(chunk)
            if shard.is_async:
                payload = bytes(payload)  # the next push is applied in place, maybe before this has left
            header = Header(
                FrameType.PARAMETERS, epoch=shard.epoch, offset=chunk[0], length=len(payload), version=version
            )
            buffers = frame_buffers(header, payload)
            for receiver in receivers:
                if not receiver.maps_parameters:
                    receiver.send_buffers(buffers)

    def _fetch_received(self, connection: DataConnection, header: Header, payload: bytes) -> None:
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
                    version=state.version, section=section, crc=0 if connection.is_local else zlib.crc32(piece),
                )  # fmt: skip
                connection.send(head, piece)

    def _parameter_floats(self) -> int:
        shard = self.shard or self.candidate
        assert shard is not None, "something was found, so there is a shard"
        return shard.parameter_floats


def make_shard(assume: Assume, state: RangeState | None) -> Shard:
    """The shard of one membership epoch, from the state that was collected (None: worker 0 brings it)."""
    if assume.is_async:
        return AsyncShard(assume, state)  # workers clip what they push
    clips = assume.profile.update.max_gradient_norm is not None
    return (ClippingShard if clips and assume.first < assume.profile.parameter_floats else SyncShard)(assume, state)
