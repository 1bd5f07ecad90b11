"""Sync training with the gradient clipped: nothing is updated before the norm of all of it is known.

A step has two halves. First the pushes of each chunk are summed into the memory that will have its next version, and
worker 0 is sent the sums of squares of this server's blocks (NORMS). It adds up those of all servers and answers with
the coefficient (CLIP); then the chunks are updated. No more memory is needed than without clipping.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optimus_workers.server.shard import Norms, Ready
from optimus_workers.server.sync_shard import SyncShard
from optimus_workers.server.update import thread_floats
from optimus_workers.wire.errors import WireError
from optimus_workers.wire.frames import Header


class ClippingShard(SyncShard):
    """A range with at least one parameter, of a job that clips."""

    def _begin_step(self) -> None:
        super()._begin_step()
        self._coefficient: float | None = None
        self._summed: set[int] = set()

    @property
    def _tells_squares(self) -> bool:
        return False  # they have been told, in the first half

    @property
    def _is_summed(self) -> bool:
        return len(self._summed) == len(self.chunks)

    def clip_received(self, header: Header, coefficient: float) -> Iterator[Ready]:
        """The second half of the step."""
        with self._changed:
            self._check_running()
            if header.step != self.version or not self._is_summed or self._coefficient is not None:
                raise WireError(f"a coefficient for step {header.step} at version {self.version}")
            self._coefficient = coefficient
            self._n_finished = 0
            self._complete.extend(range(len(self.chunks)))
            self._changed.notify_all()
        yield from self._work()

    def _may_help(self, header: Header) -> bool:
        # Worker 0 has the coefficient to bring, by the very connection whose thread would be kept here.
        return super()._may_help(header) and not (header.source == 0 and self._is_summed)

    def _process(self, index: int) -> None:
        if self._coefficient is None:
            self._add_up(index)
        else:
            self._update_summed(index, self._coefficient)

    def _processed(self, run: list[int]) -> Iterator[Ready]:
        if self._coefficient is not None:
            yield from super()._processed(run)
            return
        with self._changed:
            self._n_working -= 1
            self._release(run)
            self._summed.update(run)
            self._n_finished = len(self._summed)
            is_last = self._is_summed
            self._changed.notify_all()
        if is_last:
            yield Norms(self._squares.tobytes())

    def _add_up(self, index: int) -> None:
        """Leave the chunk's gradient where its next parameters will be."""
        first, end = self.chunks[index]
        for block in self._blocks(index):
            self._other.part(*block)[0][:] = self._summed_pushes(index, block)
        if first < self.parameter_floats:
            self._measure(first, self._other.part(first, end)[0])

    def _update_summed(self, index: int, coefficient: float) -> None:
        if self.chunks[index][0] >= self.parameter_floats:
            return  # buffers: their sum is their next version
        for block in self._blocks(index):
            gradient = thread_floats("sum", block[1] - block[0])
            np.multiply(self._other.part(*block)[0], coefficient, out=gradient)
            self._write(block, self._learning_rate, gradient, self._current, self._other)
