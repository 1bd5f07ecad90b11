"""Which examples a step trains on: a pure function, so that any worker can compute any micro-batch at any time.

All passes over the data stand one after the other in one endless stream, each in its own random order:

    stream = permutation(seed, epoch 0) ++ permutation(seed, epoch 1) ++ ...      (n_examples each)

Step t takes positions [t·M, (t+1)·M) of it, so a batch may cross the end of an epoch, and each example appears exactly
once in each epoch however the steps are shared among workers. Within the batch, micro-batch s of V takes the positions
from floor(M·s/V) up to floor(M·(s+1)/V): sizes differ by one at most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
EpochOrder = Callable[[int, int], Indices]


def micro_batch_indices(
    seed: int,
    first: int,
    number: int,
    n_micro_batches: int,
    batch_size: int,
    n_examples: int,
    order: EpochOrder | None = None,
) -> Indices:
    """The example indices of micro-batch `number`, from 0, of a batch of `batch_size` that begins at `first` in the
    stream.

    `order(seed, epoch)`: the order of one epoch's examples, shape (n_examples,); None: a random permutation. The result
    has shape (m,), m = 0 when there are more micro-batches than examples in the batch. Do not write to the array.
    """
    if not 0 <= number < n_micro_batches:
        raise ValueError(f"the micro-batch must be from 0 to {n_micro_batches - 1}, not {number}")
    start, stop = first + batch_size * number // n_micro_batches, first + batch_size * (number + 1) // n_micro_batches
    return _stream(seed, start, stop, n_examples, order or _permutation_of(n_examples))


def _permutation_of(n_examples: int) -> EpochOrder:
    return lambda seed, epoch: _permutation(seed, epoch, n_examples)


def _stream(seed: int, start: int, stop: int, n_examples: int, order: EpochOrder) -> Indices:
    """Positions [start, stop) of the endless stream."""
    pieces = []
    while start < stop:
        epoch, offset = divmod(start, n_examples)
        piece = order(seed, epoch)[offset : offset + stop - start]
        pieces.append(piece)
        start += len(piece)
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


# Two: the batch at hand may begin in one epoch and end in the next.
@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, n_examples: int) -> Indices:
    """The order of epoch `epoch`, shape (n_examples,), read-only."""
    order = np.random.Generator(np.random.PCG64((seed, epoch))).permutation(n_examples).astype(np.int64)
    order.setflags(write=False)
    return order
