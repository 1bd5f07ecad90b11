"""Sync training: all workers' pushes of a chunk are summed in the order of their ranks and applied as one update.

Version t+1 is written into the other of two states while version t stays whole, and version t is overwritten only when
all workers push step t+1, which each of them does after it has pulled version t+1 from all servers. So the versions of
any two servers differ by one at most, and the smaller one is still there on both: a step that a death cut short is
repeated from it.

With clipping (`ClippingShard`) nothing is updated before the norm of the whole gradient is known, so a step has two
halves. First the pushes of each chunk are summed into the memory that will have its next version, and worker 0 is sent
the sums of squares of this server's blocks (NORMS). It adds up those of all servers and answers with the coefficient
(CLIP); then the chunks are updated. No more memory is needed than without clipping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from optimus_workers.errors import WireError
from optimus_workers.server.range_state import RangeState
from optimus_workers.server.shard import STAGED_SHARES, Norms, Ready, Shard
from optimus_workers.server.update import thread_floats
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.frames import Codec, Header
from optimus_workers.wire.memory import Floats, private_floats
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.norms import block_squares
from optimus_workers.wire.ranges import Range

SLAB_CHUNKS = 4
"""Chunks whose memory is got together, so that it may be huge pages."""
RUN_CHUNKS = 4
"""Chunks that a thread takes at a time when whole pushes are there: fewer messages."""
MIN_WINDOW = 4
"""Chunks of one worker that may wait for those of others, at least."""


class SyncShard(Shard):
    """Two versions, and the pushes of one step."""

    def __init__(self, assume: Assume, state: RangeState | None) -> None:
        super().__init__(assume, state)
        self._other = RangeState.zeros(-1, self.first, self.end, len(self._current.sections))
        self._states = [self._current, self._other]
        self._other_is_whole = False
        # A worker may be so many chunks ahead of what is done. All push in the same order, so there is always room for
        # what is due next.
        shares = STAGED_SHARES * len(self._current.sections) / max(1, self.n_workers)
        self._window = min(len(self.chunks), max(MIN_WINDOW, int(shares * len(self.chunks))))
        self._staged: dict[tuple[int, int], Floats] = {}  # (rank, index) → a pushed chunk
        self._unused: list[Floats] = []  # the last one used comes first: it is still in the processor's cache
        self._bytes: dict[int, memoryview] = {}  # id of a chunk's memory, which is kept for good → the same as bytes
        n_floats = max(0, min(self.end, self.parameter_floats) - self.first)
        self._squares = np.zeros(-(-n_floats // self._norm_block_floats))
        self._learning_rate = 0.0
        self._n_working = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._missing = [set(range(self.n_workers)) for _ in self.chunks]
        self._complete: deque[int] = deque()
        self._done: set[int] = set()
        self._n_finished = 0  # chunks whose pushes are not needed any more
        self._n_pushed = [0] * self.n_workers

    @property
    def _sends_squares(self) -> bool:
        """At the end of the step at hand."""
        period = self._profile.gradient_period
        return period > 0 and self.version % period == 0 and len(self._squares) > 0

    @property
    def memories(self) -> list[RangeState]:
        return self._states

    def stop(self) -> None:
        super().stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._n_working)

    def states(self) -> Iterator[RangeState]:
        yield from super().states()
        if self._other_is_whole:
            yield self._other

    def _newest(self, part: Range) -> RangeState:
        """The version that is being made, where this part of it is done already."""
        return self._other if self._index[part[0]] in self._done else self._current

    # --- pushes ------------------------------------------------------------------------------------------------------

    def _staging(self, header: Header, index: int) -> Floats:
        with self._changed:
            self._check_due(header, index)
            n_before = self._n_pushed[header.source]
            self._changed.wait_for(lambda: self._stopped or n_before < self._n_finished + self._window)
            self._check_running()
            key = header.source, index
            if key not in self._staged:
                self._staged[key] = self._unused_chunk()
            first, end = self.chunks[index]
            staged = self._staged[key]
            return staged if len(staged) == end - first else staged[: end - first]

    def _unused_chunk(self) -> Floats:
        """Memory for a pushed chunk."""
        if not self._unused:
            slab = list(private_floats(SLAB_CHUNKS * self._chunk_floats).reshape(SLAB_CHUNKS, -1))
            self._bytes.update((id(chunk), as_bytes(chunk)) for chunk in slab)
            self._unused.extend(slab)
        return self._unused.pop()

    def memory_for(self, header: Header) -> memoryview:
        place = self.place(header)
        return self._bytes.get(id(place)) or as_bytes(place)

    def _check_due(self, header: Header, index: int) -> None:
        if header.step != self.version or header.source not in self._missing[index]:
            raise WireError(f"a push of step {header.step} by worker {header.source} at version {self.version}")

    def push_received(self, header: Header) -> Iterator[Ready]:
        is_shared = header.codec is Codec.SHARED
        indices = self._shared_indices(header) if is_shared else [self._index[header.offset]]
        with self._changed:
            self._check_running()
            for index in indices:
                self._check_due(header, index)
                self._missing[index].discard(header.source)
            self._n_pushed[header.source] += len(indices)
            if header.source == 0:
                self._learning_rate = header.learning_rate
            self._complete.extend(index for index in indices if not self._missing[index])
            self._changed.notify_all()
        yield from self._work()
        if is_shared:
            yield from self._help(header)

    def _help(self, header: Header) -> Iterator[Ready]:
        """Nothing more can come from this worker until the step is done: work on what others complete."""
        while not self._stopped and self._may_help(header):
            yield from self._work()
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or not self._may_help(header) or bool(self._complete))

    def _may_help(self, header: Header) -> bool:
        return self.version == header.step and self._n_pushed[header.source] == len(self.chunks)

    def _work(self) -> Iterator[Ready]:
        """Process chunks as long as there are complete ones."""
        # Read without the lock: a thread that completes a chunk comes here after it.
        while self._complete and (run := self._take()):
            try:
                for index in run:
                    self._process(index)
            except BaseException:
                with self._changed:
                    self._n_working -= 1
                    self._changed.notify_all()
                raise
            yield from self._processed(run)

    def _take(self) -> list[int]:
        """Consecutive complete chunks for one thread; none if there are none."""
        run: list[int] = []
        with self._changed:
            limit = RUN_CHUNKS if self._shared else 1
            while self._complete and not self._stopped and len(run) < limit:
                if run and self._complete[0] != run[-1] + 1:
                    break
                run.append(self._complete.popleft())
            if run:
                self._n_working += 1
                self._other_is_whole = False
        return run

    def _processed(self, run: list[int]) -> Iterator[Ready]:
        """Chunks in a row have their next version: it can be sent."""
        with self._changed:
            self._n_working -= 1
            sends_squares = self._sends_squares
            self._done.update(run)
            self._release(run)
            self._n_finished = len(self._done)
            is_last = self._n_finished == len(self.chunks)
            if is_last:
                self._turn()
            self._changed.notify_all()
        if is_last and sends_squares:
            yield Norms(self._squares.tobytes())  # before the step is complete for worker 0
        yield self.chunks[run[0]][0], self.chunks[run[-1]][1]

    def _release(self, run: list[int]) -> None:
        """Their pushes are no longer needed."""
        staged = [self._staged.pop((rank, index), None) for index in run for rank in range(self.n_workers)]
        self._unused.extend(chunk for chunk in staged if chunk is not None)

    def _turn(self) -> None:
        """All chunks have their next version: it becomes the current one."""
        self._other.version = self._current.version + 1
        self._current, self._other = self._other, self._current
        self._other_is_whole = True
        self._begin_step()

    # --- arithmetic --------------------------------------------------------------------------------------------------

    def _process(self, index: int) -> None:
        """Write the chunk's next version into the other state."""
        for block in self._blocks(index):
            summed = self._summed_pushes(index, block)
            if self._sends_squares and block[0] < self.parameter_floats:
                self._measure(block[0], summed)
            self._write(block, self._learning_rate, summed, self._current, self._other)

    def _measure(self, first: int, gradient: Floats) -> None:
        """Keep the sums of squares of a part that begins at a block's boundary."""
        number = (first - self.first) // self._norm_block_floats
        squares = block_squares(gradient, self._norm_block_floats)
        self._squares[number : number + len(squares)] = squares

    def _summed_pushes(self, index: int, block: Range) -> Floats:
        """The sum of all workers' pushes of a part of one chunk."""
        chunk = self.chunks[index]
        pushes = [self._pushed(rank, index) for rank in range(self.n_workers)]
        if block != chunk:
            pushes = [push[block[0] - chunk[0] : block[1] - chunk[0]] for push in pushes]
        return self._sum(pushes)

    def _pushed(self, rank: int, index: int) -> Floats:
        first, end = self.chunks[index]
        shared = self._shared.get(rank)
        if shared is not None:
            return shared[first:end]
        staged = self._staged[rank, index]
        return staged if len(staged) == end - first else staged[: end - first]

    def _sum(self, blocks: list[Floats]) -> Floats:
        """The sum in the order of ranks, so that the result is always the same."""
        if len(blocks) == 1:
            return blocks[0]
        summed = thread_floats("sum", len(blocks[0]))
        np.add(blocks[0], blocks[1], out=summed)
        for block in blocks[2:]:
            np.add(summed, block, out=summed)
        return summed


# --- with the gradient clipped ---------------------------------------------------------------------------------------


class ClippingShard(SyncShard):
    """A range with at least one parameter, of a job that clips."""

    def _begin_step(self) -> None:
        super()._begin_step()
        self._coefficient: float | None = None
        self._summed: set[int] = set()

    @property
    def _sends_squares(self) -> bool:
        return False  # they were sent in the first half

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
