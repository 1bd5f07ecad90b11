"""One server's range of the flat vector: what sync and async training have in common, and async training itself.

The threads of the connections call in at the same time. Bookkeeping is guarded by `_changed`; the arithmetic on a chunk
is done outside of it by the thread that completed the chunk. `sync_shard` has the shard of sync training.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from optimus_workers.errors import ConnectionOver, WireError
from optimus_workers.server.range_state import RangeState
from optimus_workers.server.update import Piece, n_state_sections, pieces, write_update
from optimus_workers.wire.compression import check_length
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.frames import CHUNK_FLOATS, FLOAT_BYTES, Codec, FrameType, Header
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.ranges import Range, block_floats, chunks
from optimus_workers.wire.values import Holding

STAGED_SHARES = 1.5
"""What pushes on their way may take, in shares of parameters and optimizer state. With the two versions of the share
that is 3.5 shares: below 4 with what else a server needs."""
BLOCK_FLOATS = 65_536
"""Summed and updated at a time, at least: what is computed on the way stays in a core's own cache. Smaller blocks cost
more in calls than they save (docs/studies/training-costs.md)."""


@dataclass(frozen=True, slots=True)
class Norms:
    """For worker 0: the sums of squares of the gradient's blocks, float64."""

    squares: bytes


Ready = Range | Norms
"""What can be sent: new parameters of a range, or norms."""


class Shard(ABC):
    """The chunk table, initial parameters, pulls, and the memory of workers on this machine."""

    is_async: ClassVar[bool] = False
    """Each push is an update of its own, in place."""

    def __init__(self, assume: Assume, state: RangeState | None) -> None:
        """`state`: the range at `assume.version`; None: worker 0 brings the parameters."""
        self.epoch = assume.epoch
        self.first, self.end = assume.first, assume.end
        self.n_workers = assume.n_workers
        self._profile = assume.profile
        self.total_floats = assume.profile.total_floats
        self.parameter_floats = assume.profile.parameter_floats
        self.chunks = chunks(self.first, self.end, self.parameter_floats)
        self._index = {first: index for index, (first, _) in enumerate(self.chunks)}
        n_sections = 1 + n_state_sections(self._profile.update)
        self._current = state or RangeState.zeros(assume.version, self.first, self.end, n_sections)
        self._initial_missing = set[int]() if state else set(range(len(self.chunks)))
        self._pieces: dict[Range, list[Piece]] = {}
        self._norm_block_floats = block_floats(self.total_floats)
        self._shared: dict[int, Floats] = {}
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def is_ready(self) -> bool:
        """The parameters are there."""
        return not self._initial_missing

    @property
    def version(self) -> int:
        return self._current.version

    @property
    def memories(self) -> list[RangeState]:
        """The states whose parameters a worker on this machine may map: none, or the two of sync training."""
        return []

    def reading(self) -> AbstractContextManager[object]:
        """Hold this while parameters are copied."""
        return nullcontext()

    def stop(self) -> None:
        """Take nothing more; on return nothing changes any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def states(self) -> Iterable[RangeState]:
        """Every whole version that is there."""
        if self.is_ready and self.first < self.end:
            yield self._current

    def holdings(self) -> Iterable[Holding]:
        for state in self.states():
            yield Holding(self.epoch, state.version, state.first, state.end)

    def attach(self, rank: int, push: Floats) -> None:
        """A worker on this machine leaves its pushes in this memory, (total_floats,)."""
        self._check_rank(rank)
        with self._changed:
            self._shared[rank] = push

    def place(self, header: Header) -> Floats:
        """Where the values of an INITIAL or PUSH frame go. Waits until there is room.

        Raises `WireError` when there is no place for it, `ConnectionOver` once the shard was stopped.
        """
        index = self._index.get(header.offset)
        if index is None:
            raise WireError(f"no chunk at {header.offset} here")
        first, end = self.chunks[index]
        check_length(header, end - first)
        self._check_rank(header.source)
        if header.type is FrameType.INITIAL:
            if index not in self._initial_missing:
                raise WireError("the initial parameters are there already")
            return self._current.part(first, end)[0]
        if not self.is_ready:
            raise WireError("a push before the initial parameters are there")
        if header.codec is not Codec.FLOAT32 and first >= self.parameter_floats:
            raise WireError("buffers are not compressed")
        return self._staging(header, index)

    def memory_for(self, header: Header) -> memoryview:
        """What `place` gives, as bytes."""
        return as_bytes(self.place(header))

    def initial_received(self, header: Header) -> bool:
        """A chunk of the initial parameters is in place; whether that was the last one."""
        self._initial_missing.discard(self._index[header.offset])
        return self.is_ready

    @abstractmethod
    def push_received(self, header: Header) -> Iterable[Ready]:
        """A chunk of a push is in place (or several in a row, in shared memory); what can be sent now."""

    def clip_received(self, header: Header, coefficient: float) -> Iterable[Ready]:  # noqa: ARG002 - of those that clip
        """Worker 0 knows what to multiply the gradient with; what can be sent now."""
        raise WireError("gradients are not clipped here")

    def locate(self, part: Range) -> tuple[Floats, int]:
        """The newest parameters of one or more chunks, and in which of `memories` they lie."""
        state = self._newest(part)
        return state.part(*part)[0], next((i for i, each in enumerate(self.memories) if each is state), 0)

    def payload(self, part: Range) -> memoryview:
        """The newest parameters of one or more chunks as bytes."""
        return self._newest(part).payload(part)

    def _newest(self, part: Range) -> RangeState:  # noqa: ARG002 - of those with two versions
        return self._current

    def chunks_of(self, part: Range) -> list[Range]:
        """The chunks that a range consists of."""
        index = self._index[part[0]]
        found = []
        while index < len(self.chunks) and self.chunks[index][1] <= part[1]:
            found.append(self.chunks[index])
            index += 1
        return found

    @abstractmethod
    def _staging(self, header: Header, index: int) -> Floats:
        """Where a push's chunk is received."""

    def _check_rank(self, rank: int) -> None:
        if rank >= self.n_workers:
            raise WireError(f"there is no worker {rank}")

    def _shared_indices(self, header: Header) -> list[int]:
        """The chunks that a push in shared memory is of. Raises `WireError` when it is of parts of chunks."""
        first, end = header.offset, header.offset + header.length // FLOAT_BYTES
        found = self.chunks_of((first, end)) if first in self._index else []
        if header.source not in self._shared or not found or found[-1][1] != end:
            raise WireError("not of whole chunks, or of memory that is not shared")
        return [self._index[start] for start, _ in found]

    def _check_running(self) -> None:
        if self._stopped:
            raise ConnectionOver("the membership epoch is over")

    def _write(self, part: Range, learning_rate: float, summed: Floats, source: RangeState, target: RangeState) -> None:
        """Apply the summed push of a part of one chunk to what `source` holds, and write it into `target`, which may
        be the same."""
        if part[0] >= self.parameter_floats:
            target.part(*part)[0][:] = summed  # buffers: the mean that the workers computed, no optimizer
            return
        for piece in self._pieces_of(part):
            old, new = source.part(piece.first, piece.end), target.part(piece.first, piece.end)
            rate = learning_rate * piece.learning_rate_scale
            write_update(piece.rule, rate, self.version, old, _of_piece(summed, part, piece), new)

    def _pieces_of(self, part: Range) -> list[Piece]:
        found = self._pieces.get(part)
        if found is None:
            found = self._pieces[part] = list(pieces(self._profile.update, part))
        return found

    def _blocks(self, index: int) -> Iterator[Range]:
        """The parts of a chunk that are summed and updated at a time."""
        start, end = self.chunks[index]
        length = max(BLOCK_FLOATS, self._norm_block_floats)  # so that norms are of whole blocks
        for first in range(start, end, length):
            yield first, min(first + length, end)

    @property
    def _chunk_floats(self) -> int:
        return min(CHUNK_FLOATS, self.end - self.first)


def _of_piece(summed: Floats, part: Range, piece: Piece) -> Floats:
    """What of a part's sum is the piece's: nearly always all of it."""
    if (piece.first, piece.end) == part:
        return summed
    return summed[piece.first - part[0] : piece.end - part[0]]


# --- async training --------------------------------------------------------------------------------------------------


class AsyncShard(Shard):
    """One version, and the pushes of some workers; others wait until there is room again.

    A worker's push is applied in place as soon as all of it is there, and answered to that worker alone.
    """

    is_async = True

    def __init__(self, assume: Assume, state: RangeState | None) -> None:
        super().__init__(assume, state)
        self._applying = threading.Lock()
        self._staged: dict[int, Floats] = {}
        self._free: list[Floats] = []
        # One version instead of two leaves room for the pushes of one more share.
        self._n_unused = max(1, int((1 + STAGED_SHARES) * len(self._current.sections)))
        self._missing: dict[int, set[int]] = {}

    def stop(self) -> None:
        super().stop()
        with self._applying:
            pass  # an update that was going on has finished

    def reading(self) -> AbstractContextManager[object]:
        return self._applying

    def _staging(self, header: Header, index: int) -> Floats:
        first, end = self.chunks[index]
        rank = header.source
        with self._changed:
            if rank not in self._staged:
                self._changed.wait_for(lambda: self._stopped or bool(self._free) or self._n_unused > 0)
                self._check_running()
                self._staged[rank] = self._free.pop() if self._free else self._more()
                self._missing[rank] = set(range(len(self.chunks)))
            if index not in self._missing[rank]:
                raise WireError(f"chunk {header.offset} of worker {rank} came twice")
            return self._staged[rank][first - self.first : end - self.first]

    def _more(self) -> Floats:
        self._n_unused -= 1
        return np.empty(self.end - self.first, np.float32)  # untouched, it costs nothing

    def push_received(self, header: Header) -> Iterator[Range]:
        rank = header.source
        if header.codec is Codec.SHARED:
            missing = self._missing.get(rank) or set(range(len(self.chunks)))
            indices = self._shared_indices(header)
            if not missing.issuperset(indices):
                raise WireError(f"chunks from {header.offset} on of worker {rank} came twice")
            self._missing[rank] = missing.difference(indices)
            if not self._missing[rank]:
                yield from self._apply(self._shared[rank][self.first : self.end], header.learning_rate)
            return
        missing = self._missing[rank]
        missing.discard(self._index[header.offset])
        if missing:
            return
        yield from self._apply(self._staged[rank], header.learning_rate)
        with self._changed:
            self._free.append(self._staged.pop(rank))
            self._changed.notify_all()

    def _apply(self, push: Floats, learning_rate: float) -> Iterator[Range]:
        """One update of the whole range. What is yielded must be copied before the next one is asked for."""
        with self._applying:
            self._check_running()
            for index in range(len(self.chunks)):
                for block in self._blocks(index):
                    part = push[block[0] - self.first : block[1] - self.first]
                    self._write(block, learning_rate, part, self._current, self._current)
            self._current.version += 1
            yield from self.chunks
