"""Async training: a worker's push is applied in place as soon as all of it is there, and answered to it alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np

from optimus_workers.errors import WireError
from optimus_workers.server.range_state import RangeState
from optimus_workers.server.shard import STAGED_SHARES, Shard
from optimus_workers.wire.frames import Codec, Header
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.ranges import Range


class AsyncShard(Shard):
    """One version, and the pushes of some workers; others wait until there is room again."""

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
