"""Which samples count, and what they say of a job's progress: pure rules, no database.

A job's history is a chain of membership epochs. Epoch e owns the steps from where it began up to where a later epoch
began; when a death rolled training back, the steps beyond that point were done again by the later epoch, and what e
tells of them counts no more::

    epoch 1   ├──────────────┼─ ─ ─ ─┤  rolled back: samples that reach into this part are "old_membership"
    epoch 2                  ├──────────────▶
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import NamedTuple

from optimus_contract.telemetry import SampleColumns
from optimus_service.store.records import IgnoredWhy

BLOCK = 4096
"""Sequence numbers whose being counted is kept together, a bit for each."""
BLOCKS_KEPT = 2
"""Newest blocks of a rank in an epoch. A worker sends its samples in their order: one from before has come already."""


@dataclass(frozen=True, slots=True)
class EpochBounds:
    """What the telemetry rules need to know of a reported membership."""

    step: int
    """Steps completed when it began."""
    n_workers: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    step: int
    first_step: int | None
    epoch: float | None
    loss: float | None


class Block(NamedTuple):
    """`BLOCK` sequence numbers of one rank in one membership epoch, from `BLOCK * number` on."""

    membership_epoch: int
    rank: int
    number: int


@dataclass(slots=True)
class Counted:
    """Which samples of some blocks were counted."""

    bits: int = 0
    """Bit i: the sample with the block's sequence number i."""
    max_step: int = 0
    """The highest step among them."""


ALL_COUNTED = (1 << BLOCK) - 1
"""Bits of a block whose row was deleted: see `BLOCKS_KEPT`."""


@dataclass(slots=True)
class Sorted:
    """What becomes of a post."""

    counted: list[int] = field(default_factory=list)
    """Places of the samples that count."""
    ignored: dict[int, IgnoredWhy] = field(default_factory=dict)
    """Why the others do not, by their place."""


class _Run(NamedTuple):
    """A post as workers send it: samples of one rank in one epoch, numbered one after the other."""

    membership_epoch: int
    rank: int
    first: int
    """The sequence number of the first one."""
    n_samples: int

    @classmethod
    def of(cls, columns: SampleColumns) -> _Run | None:
        """None: the post is none. What is said of runs is said sample by sample of all others, and costs more."""
        epochs, ranks, sequence = columns.membership_epoch, columns.rank, columns.sequence
        n, first = len(sequence), sequence[0]
        if epochs.count(epochs[0]) < n or ranks.count(ranks[0]) < n or sequence != list(range(first, first + n)):
            return None
        return cls(epochs[0], ranks[0], first, n)

    def parts(self) -> Iterator[tuple[Block, int, slice]]:
        """Of each block that it reaches into: the bits that are its samples', and their places."""
        end = self.first + self.n_samples
        for number in range(self.first // BLOCK, (end - 1) // BLOCK + 1):
            begins, ends = max(self.first, number * BLOCK), min(end, (number + 1) * BLOCK)
            bits = ((1 << (ends - begins)) - 1) << (begins - number * BLOCK)
            yield Block(self.membership_epoch, self.rank, number), bits, slice(begins - self.first, ends - self.first)


def blocks_of(columns: SampleColumns) -> set[Block]:
    """Those that the samples of a post are in."""
    if run := _Run.of(columns):
        return {block for block, _, _ in run.parts()}
    keys = zip(columns.membership_epoch, columns.rank, columns.sequence, strict=True)
    return {Block(epoch, rank, sequence // BLOCK) for epoch, rank, sequence in keys}


def _place_of(epoch: int, rank: int, reported: Mapping[int, EpochBounds]) -> IgnoredWhy | float:
    """The last step of this rank in this epoch that counts; or why none does."""
    if epoch > max(reported, default=0) + 1:
        return "unknown_membership"
    own = reported.get(epoch)
    if own is not None and rank >= own.n_workers:
        return "old_membership"
    return min((bounds.step for later, bounds in reported.items() if later > epoch), default=math.inf)


def sort_out(columns: SampleColumns, reported: Mapping[int, EpochBounds], blocks: Mapping[Block, Counted]) -> Sorted:
    """Which samples of a post count. `blocks` has all of `blocks_of(columns)`; they are not changed."""
    if (run := _Run.of(columns)) and _is_all_new(run, columns, reported, blocks):
        return Sorted(list(range(run.n_samples)))
    found = Sorted()
    origins = set(zip(columns.membership_epoch, columns.rank, strict=True))
    places = {origin: _place_of(*origin, reported) for origin in origins}
    bits = {key: block.bits for key, block in blocks.items()}
    for index, (epoch, rank, sequence, step) in enumerate(_keys(columns)):
        place = places[epoch, rank]
        why: IgnoredWhy | None = None
        if isinstance(place, str):
            why = place
        elif step > place:
            why = "old_membership"
        else:
            key, bit = Block(epoch, rank, sequence // BLOCK), 1 << sequence % BLOCK
            if not bits[key] & bit:
                bits[key] |= bit
                found.counted.append(index)
                continue
            why = "duplicate"
        found.ignored[index] = why
    return found


def _is_all_new(
    run: _Run, columns: SampleColumns, reported: Mapping[int, EpochBounds], blocks: Mapping[Block, Counted]
) -> bool:
    place = _place_of(run.membership_epoch, run.rank, reported)
    if isinstance(place, str) or max(columns.step) > place:
        return False
    return not any(blocks[block].bits & bits for block, bits, _ in run.parts())


def mark(columns: SampleColumns, blocks: Mapping[Block, Counted]) -> None:
    """Keep in `blocks` that all these samples were counted."""
    if run := _Run.of(columns):
        for key, bits, places in run.parts():
            blocks[key].bits |= bits
            blocks[key].max_step = max(blocks[key].max_step, *columns.step[places])
        return
    for epoch, rank, sequence, step in _keys(columns):
        block = blocks[Block(epoch, rank, sequence // BLOCK)]
        block.bits |= 1 << sequence % BLOCK
        block.max_step = max(block.max_step, step)


def _keys(columns: SampleColumns) -> Iterator[tuple[int, int, int, int]]:
    return zip(columns.membership_epoch, columns.rank, columns.sequence, columns.step, strict=True)


def advance_progress(progress: Progress, columns: SampleColumns) -> Progress:
    """Where a job is after these samples: the furthest one tells step, epoch and loss; the step never goes back."""
    steps, order = columns.step, _by_step(columns)
    first = max(0, min(map(sub, steps, columns.n_steps)) + 1 if columns.n_steps else min(steps))
    known = first if progress.first_step is None else min(progress.first_step, first)
    telling = [index for index in order if steps[index] >= progress.step]
    if progress.first_step is None and not telling:
        telling = [order[0]]
    if not telling:
        return Progress(progress.step, known, progress.epoch, progress.loss)
    losses: Sequence[float | None] = columns.loss or ()
    newest_first = (losses[index] for index in reversed(telling) if losses and losses[index] is not None)
    newest = telling[-1]
    loss = next(newest_first, progress.loss)
    return Progress(max(progress.step, steps[newest]), known, columns.data_epoch[newest], loss)


def _by_step(columns: SampleColumns) -> Sequence[int]:
    """The places of the samples, by step, membership epoch and rank."""
    if _Run.of(columns) and columns.step == sorted(columns.step):
        return range(len(columns))
    keys = zip(columns.step, columns.membership_epoch, columns.rank, strict=True)
    return [index for _, index in sorted((key, index) for index, key in enumerate(keys))]
