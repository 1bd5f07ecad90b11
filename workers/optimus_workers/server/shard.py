"""One server's range of the flat vector: what pushes do to it, and which versions of it are there.

Sync: version t+1 is written into the other of two buffers while version t stays whole, and version t is overwritten
only when all workers push step t+1, which each of them does after it has pulled version t+1 from all servers. So the
versions of any two servers differ by one at most, and the smaller one is still there on both: a step that a death cut
short is repeated from it.
Async: a push is applied in place as soon as it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from optimus_workers.ranges import Range, chunks
from optimus_workers.server.update import apply_update, n_state_sections
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.errors import WireError
from optimus_workers.wire.frames import FrameType, Header
from optimus_workers.wire.messages import Assume, Holding


@dataclass(slots=True)
class RangeState:
    """The range [first, end) at one version. Section 0: parameters, the others: optimizer state; all (end - first,)."""

    version: int
    first: int
    end: int
    sections: list[Tensor]

    @classmethod
    def zeros(cls, version: int, first: int, end: int, n_sections: int) -> RangeState:
        return cls(version, first, end, [torch.zeros(end - first) for _ in range(n_sections)])

    def part(self, first: int, end: int) -> list[Tensor]:
        """Views of [first, end) of each section."""
        return [section[first - self.first : end - self.first] for section in self.sections]


class Shard:
    """What sync and async mode have in common: the chunk table, initial parameters, pulls."""

    def __init__(self, assume: Assume, state: RangeState | None) -> None:
        """`state`: the range at `assume.version`; None: worker 0 brings the parameters."""
        self.epoch = assume.epoch
        self.first, self.end = assume.first, assume.end
        self.n_workers = assume.n_workers
        self._profile = assume.profile
        self.parameter_floats = assume.profile.parameter_floats
        self.chunks = chunks(self.first, self.end, self.parameter_floats)
        self._index = {first: index for index, (first, _) in enumerate(self.chunks)}
        n_sections = 1 + n_state_sections(self._profile.update)
        self._current = state or RangeState.zeros(assume.version, self.first, self.end, n_sections)
        self._initial_missing = set[int]() if state else set(range(len(self.chunks)))

    @property
    def is_ready(self) -> bool:
        """The parameters are there."""
        return not self._initial_missing

    @property
    def version(self) -> int:
        return self._current.version

    def states(self) -> Iterable[RangeState]:
        """Every whole version that is there."""
        if self.is_ready and self.first < self.end:
            yield self._current

    def holdings(self) -> Iterable[Holding]:
        for state in self.states():
            yield Holding(self.epoch, state.version, state.first, state.end)

    def destination(self, header: Header) -> memoryview:
        """Where the payload of an INITIAL or PUSH frame goes. Raises `WireError` when there is no place for it."""
        index = self._index.get(header.offset)
        if index is None or self.chunks[index][1] - header.offset != header.n_floats:
            raise WireError(f"no chunk of {header.n_floats} floats at {header.offset} here")
        if header.source >= self.n_workers:
            raise WireError(f"there is no worker {header.source}")
        if header.type is FrameType.INITIAL:
            if index not in self._initial_missing:
                raise WireError("the initial parameters are there already")
            return as_bytes(self._parameters(index))
        if not self.is_ready:
            raise WireError("a push before the initial parameters are there")
        return as_bytes(self._staging(header, index))

    def initial_received(self, header: Header) -> bool:
        """A chunk of the initial parameters is in place; whether that was the last one."""
        self._initial_missing.discard(self._index[header.offset])
        return self.is_ready

    def push_received(self, header: Header) -> Iterable[Range]:
        """A chunk of a push is in place; the chunks whose new parameters can be sent now."""
        raise NotImplementedError

    def parameters(self, chunk: Range) -> Tensor:
        """The newest parameters of one chunk."""
        return self._current.part(*chunk)[0]

    def _parameters(self, index: int) -> Tensor:
        return self._current.part(*self.chunks[index])[0]

    def _staging(self, header: Header, index: int) -> Tensor:
        raise NotImplementedError

    def _update(self, chunk: Range, learning_rate: float, summed: Tensor, target: RangeState) -> None:
        """Apply the summed push of one chunk to `target`, which holds what it is to be applied to."""
        parameters, *state = target.part(*chunk)
        if chunk[0] >= self.parameter_floats:
            parameters.copy_(summed)  # buffers: the mean that the workers computed, no optimizer
        else:
            apply_update(self._profile.update, learning_rate, self.version, parameters, summed, state)


class SyncShard(Shard):
    """All workers' pushes of a chunk are summed in the order of their ranks and applied as one update."""

    def __init__(self, assume: Assume, state: RangeState | None) -> None:
        super().__init__(assume, state)
        self._pushes = torch.empty(self.n_workers, self.end - self.first)
        self._missing = self._all_missing()
        self._n_updated = 0
        self._learning_rate = 0.0
        self._other = RangeState(
            -1, self.first, self.end, [torch.empty_like(section) for section in self._current.sections]
        )
        self._other_is_whole = False
        self._next: dict[int, Range] = {}

    def states(self) -> Iterable[RangeState]:
        yield from super().states()
        if self._other_is_whole:
            yield self._other

    def parameters(self, chunk: Range) -> Tensor:
        """Of the version that is being made, where this chunk of it is done already."""
        state = self._other if chunk[0] in self._next else self._current
        return state.part(*chunk)[0]

    def push_received(self, header: Header) -> Iterable[Range]:
        index = self._index[header.offset]
        if header.source == 0:
            self._learning_rate = header.learning_rate
        self._missing[index].discard(header.source)
        if self._missing[index]:
            return
        self._make_next(self.chunks[index])
        yield self.chunks[index]
        self._n_updated += 1
        if self._n_updated == len(self.chunks):
            self._turn()

    def _make_next(self, chunk: Range) -> None:
        """Write the chunk's next version into the other buffer."""
        self._other_is_whole = False
        for old, new in zip(self._current.part(*chunk), self._other.part(*chunk), strict=True):
            new.copy_(old)
        first, end = chunk[0] - self.first, chunk[1] - self.first
        summed = self._pushes[0, first:end]
        for rank in range(1, self.n_workers):
            summed.add_(self._pushes[rank, first:end])
        self._update(chunk, self._learning_rate, summed, self._other)
        self._next[chunk[0]] = chunk

    def _turn(self) -> None:
        """All chunks have their next version: it becomes the current one."""
        self._other.version = self._current.version + 1
        self._current, self._other = self._other, self._current
        self._other_is_whole = True
        self._missing = self._all_missing()
        self._n_updated = 0
        self._next.clear()

    def _staging(self, header: Header, index: int) -> Tensor:
        if header.step != self.version or header.source not in self._missing[index]:
            raise WireError(f"a push of step {header.step} by worker {header.source} at version {self.version}")
        first, end = self.chunks[index]
        return self._pushes[header.source, first - self.first : end - self.first]

    def _all_missing(self) -> list[set[int]]:
        return [set(range(self.n_workers)) for _ in self.chunks]


class AsyncShard(Shard):
    """A worker's push is applied as soon as all chunks of it are there."""

    def __init__(self, assume: Assume, state: RangeState | None) -> None:
        super().__init__(assume, state)
        self._pushes = torch.empty(self.n_workers, self.end - self.first)
        self._missing = [set(range(len(self.chunks))) for _ in range(self.n_workers)]

    def push_received(self, header: Header) -> Iterable[Range]:
        missing = self._missing[header.source]
        missing.discard(self._index[header.offset])
        if missing:
            return
        self._missing[header.source] = set(range(len(self.chunks)))
        for first, end in self.chunks:
            summed = self._pushes[header.source, first - self.first : end - self.first]
            self._update((first, end), header.learning_rate, summed, self._current)
        self._current.version += 1
        yield from self.chunks

    def _staging(self, header: Header, index: int) -> Tensor:
        if index not in self._missing[header.source]:
            raise WireError(f"chunk {header.offset} of worker {header.source} came twice")
        first, end = self.chunks[index]
        return self._pushes[header.source, first - self.first : end - self.first]


def make_shard(assume: Assume, state: RangeState | None) -> Shard:
    return AsyncShard(assume, state) if assume.is_async else SyncShard(assume, state)
