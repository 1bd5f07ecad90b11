"""How the vector and the batch are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.wire.frames import CHUNK_FLOATS
from optimus_workers.wire.ranges import ALIGNMENT, aligned, block_floats, chunks, server_ranges, worker_micro_batches


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_server_ranges_cover_the_vector_evenly(n_units: int, n_servers: int) -> None:
    ranges = server_ranges(n_units * ALIGNMENT, n_servers)
    assert len(ranges) == n_servers
    assert [first for first, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == n_units * ALIGNMENT
    assert all(first % ALIGNMENT == 0 for first, _ in ranges)
    sizes = [end - first for first, end in ranges]
    assert max(sizes) - min(sizes) <= block_floats(n_units * ALIGNMENT) <= max(ALIGNMENT, n_units * ALIGNMENT / 1000)


@given(st.integers(1, 30), st.integers(1, 50))
def test_every_micro_batch_has_one_worker(n_micro_batches: int, n_workers: int) -> None:
    shares = [range(*worker_micro_batches(n_micro_batches, rank, n_workers)) for rank in range(n_workers)]
    assert [slot for share in shares for slot in share] == list(range(n_micro_batches))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(0, 60_000), st.integers(0, 60_000), st.integers(0, 60_000))
def test_chunks_cover_a_range_and_never_mix_parameters_with_buffers(a: int, b: int, boundary: int) -> None:
    first, end = ALIGNMENT * min(a, b), ALIGNMENT * max(a, b)
    boundary *= ALIGNMENT
    pieces = chunks(first, end, boundary)
    assert [start for start, _ in pieces] + [end] == [first, *(stop for _, stop in pieces)]
    assert all(0 < stop - start <= CHUNK_FLOATS for start, stop in pieces)
    assert all(stop <= boundary or start >= boundary for start, stop in pieces)


def test_alignment() -> None:
    assert [aligned(n) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
    with pytest.raises(ValueError, match="multiple of 16"):
        server_ranges(17, 2)
