"""How the flat vector is cut among servers and the global batch among workers. Pure integer arithmetic.

The flat vector is [parameters, zeros up to a multiple of 16, floating-point buffers, zeros up to a multiple of 16].
"""

from __future__ import annotations

from itertools import pairwise

from optimus_workers.wire.frames import CHUNK_FLOATS

ALIGNMENT = 16
"""Floats, one cache line. The fused optimizer kernels of all-reduce workers compute the tail behind the last full
vector register differently (one rounding less), so parameter groups do not end elsewhere."""

NORM_BLOCKS = 4096
"""A squared norm is the sum of about so many partial sums, at most twice as many: few enough to send at every step."""

Range = tuple[int, int]
"""First float and end (not included)."""


def aligned(n_floats: int) -> int:
    """The next multiple of 16 from `n_floats` up."""
    return -(-n_floats // ALIGNMENT) * ALIGNMENT


def block_floats(total_floats: int) -> int:
    """The length of the blocks that squared norms are summed over: 16 times a power of two, at most a chunk.

    Blocks begin at its multiples, and so do the servers' ranges: a block's sum does not depend on how the vector is
    cut, and the sum of all of them in order neither.
    """
    length = ALIGNMENT
    while length < CHUNK_FLOATS and length * NORM_BLOCKS < total_floats:
        length *= 2
    return length


def server_ranges(total_floats: int, n_servers: int) -> tuple[Range, ...]:
    """`n_servers` contiguous ranges that cover [0, total_floats), even to within one block, some maybe empty."""
    if total_floats % ALIGNMENT:
        raise ValueError(f"the vector must have a multiple of {ALIGNMENT} floats, not {total_floats}")
    length = block_floats(total_floats)
    n_blocks = -(-total_floats // length)
    bounds = [min(total_floats, length * (n_blocks * index // n_servers)) for index in range(n_servers + 1)]
    return tuple(pairwise(bounds))


def worker_micro_batches(micro_batches: int, rank: int, n_workers: int) -> Range:
    """The micro-batches that worker `rank` computes, equally many to within one; none for late ranks if w > V."""
    return micro_batches * rank // n_workers, micro_batches * (rank + 1) // n_workers


def chunks(first: int, end: int, parameter_floats: int) -> tuple[Range, ...]:
    """The messages that carry [first, end): at most 1 MiB each, none with both parameters and buffers."""
    if first < parameter_floats < end:
        return chunks(first, parameter_floats, parameter_floats) + chunks(parameter_floats, end, parameter_floats)
    return tuple((start, min(start + CHUNK_FLOATS, end)) for start in range(first, end, CHUNK_FLOATS))
