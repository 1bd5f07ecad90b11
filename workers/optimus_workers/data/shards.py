"""Examples that come out of shard files one after the other (text, records, archives), as a data set for training.

Reading forward is all that a shard has to offer; still every example comes once per epoch in a random order, whatever
the workers do meanwhile, and training can go on from any step. For that, the order of an epoch goes through the shards:

    the shards in random order, `mixed` at a time; of each of these one block of examples after the other;
    the examples of the blocks that are read together, in random order

so that a worker reads forward and keeps few blocks in memory. The order is a function of (seed, epoch) alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimus_workers.errors import TaskError

Read = Callable[[str, int], Iterable[Any]]
Order = NDArray[np.int64]
DEFAULT_BLOCK = 1000


@dataclass(slots=True)
class _Reader:
    """A shard that is being read; `position`: the next example's number in it."""

    examples: Iterator[Any]
    position: int


class ShardedExamples:
    """A data set that `TrainingTask` takes. Each worker reads all shards, forward, and uses its part of each block:
    let `read` give what is cheap to get (bytes, lines), and decode in the task's `collate`."""

    def __init__(
        self,
        shards: Sequence[str],
        read: Read,
        sizes: Sequence[int] | None = None,
        *,
        block: int = DEFAULT_BLOCK,
        mixed: int = 4,
    ) -> None:
        """`read(shard, start)` gives the examples of a shard from number `start` on. `sizes`: how many each shard has
        (None: each is read once to count them). Up to 2 · `mixed` · `block` examples are in memory.

        Raises `TaskError`.
        """
        self._shards = [str(shard) for shard in shards]
        self._read = read
        self._given_sizes = None if sizes is None else [int(size) for size in sizes]
        self._block, self._mixed = block, mixed
        self._readers: OrderedDict[int, _Reader] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, int], list[Any]] = OrderedDict()
        _need(bool(self._shards), "shards: there are none")
        _need(len(set(self._shards)) == len(self._shards), "shards: one is named twice")
        _need(block >= 1 and mixed >= 1, "block and mixed must be from 1")
        if self._given_sizes is not None:
            _need(len(self._given_sizes) == len(self._shards), "sizes must have one number for each shard")
            _need(min(self._given_sizes) >= 0, "sizes must not be below 0")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        number, offset = divmod(index - int(self._starts[shard]), self._block)
        return self._examples_of(shard, number)[offset]

    def epoch_order(self, seed: int, epoch: int) -> Order:
        """All examples' indices in the order of one epoch. Do not write to the array."""
        return self._order(seed, epoch)

    @cached_property
    def _order(self) -> Callable[[int, int], Order]:
        # Two: the batch at hand may begin in one epoch and end in the next.
        return lru_cache(maxsize=2)(self._make_order)

    def _make_order(self, seed: int, epoch: int) -> Order:
        random = np.random.Generator(np.random.PCG64((seed, epoch)))
        shards = random.permutation(len(self._shards))
        parts: list[Order] = []
        for first in range(0, len(shards), self._mixed):
            parts += self._rounds(shards[first : first + self._mixed], random)
        order = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        order.setflags(write=False)
        return order

    def _rounds(self, shards: Order, random: np.random.Generator) -> Iterator[Order]:
        """The blocks that are read together, one of each of these shards, their examples in random order."""
        ranges = [(int(self._starts[shard]), int(self._starts[shard + 1])) for shard in shards]
        longest = max(end - start for start, end in ranges)
        for offset in range(0, longest, self._block):
            starts = [(min(start + offset, end), end) for start, end in ranges]
            blocks = [np.arange(start, min(start + self._block, end)) for start, end in starts]
            yield random.permutation(np.concatenate(blocks)).astype(np.int64)

    @cached_property
    def _starts(self) -> Order:
        """The index of each shard's first example, and the end."""
        sizes = self._given_sizes
        if sizes is None:
            sizes = [sum(1 for _ in self._read(shard, 0)) for shard in self._shards]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def _examples_of(self, shard: int, number: int) -> list[Any]:
        """A block of a shard, from memory or read now."""
        key = shard, number
        if key not in self._blocks:
            self._blocks[key] = self._read_block(shard, number)
            while len(self._blocks) > 2 * self._mixed:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key]

    def _read_block(self, shard: int, number: int) -> list[Any]:
        start = number * self._block
        n_wanted = min(self._block, int(self._starts[shard + 1] - self._starts[shard]) - start)
        reader = self._reader(shard, start)
        examples = list(islice(reader.examples, n_wanted))
        reader.position += len(examples)
        if len(examples) < n_wanted:
            raise TaskError(
                f"{self._shards[shard]} has {reader.position} examples, "
                f"not {int(self._starts[shard + 1] - self._starts[shard])} as it should"
            )
        return examples

    def _reader(self, shard: int, start: int) -> _Reader:
        """A reader of the shard at example `start`: the one that is there, if it has not gone beyond."""
        reader = self._readers.pop(shard, None)
        if reader is None or reader.position > start:
            reader = _Reader(iter(self._read(self._shards[shard], start)), start)
        skipped = sum(1 for _ in islice(reader.examples, start - reader.position))
        reader.position += skipped
        self._readers[shard] = reader
        while len(self._readers) > 2 * self._mixed:
            self._readers.popitem(last=False)  # what it holds open is closed with it
        return reader


def read_lines(path: str, start: int) -> Iterator[bytes]:
    """The lines of a file from number `start` on, without their ends: a `read` for text and JSON lines."""
    with Path(path).open("rb") as file:
        for line in islice(file, start, None):
            yield line.rstrip(b"\r\n")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise TaskError(message)
