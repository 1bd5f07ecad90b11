"""Compressed gradients: what arrives, in how many bytes, and that training gets there all the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.job import JobSpec
from optimus_workers.errors import WireError
from optimus_workers.wire.compression import BLOCK_FLOATS, Compression, check_length, decode
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.frames import MAX_PAYLOAD_BYTES, Codec, FrameType, Header
from optimus_workers.worker.compression import Compressor, encode, make_compressor

LOSSY = [kind for kind in Compression if kind is not Compression.NONE]
FEEDBACK = [Compression.INT8, Compression.TOPK]
N_FLOATS = BLOCK_FLOATS + 1000
"""One whole block of scales and a part of another."""


def sent(kind: Compression, values: torch.Tensor, keep: float = 0.1) -> tuple[torch.Tensor, int]:
    """What the other end reads, and how many bytes it took."""
    payload = as_bytes(encode(kind.codec, values, keep))
    check_length(Header(FrameType.PUSH, length=len(payload), codec=kind.codec), len(values))
    read = torch.full_like(values, math.nan)
    decode(kind.codec, payload, read.numpy())
    return read, len(payload)


@pytest.mark.parametrize(
    ("kind", "n_bytes", "error"),
    [
        (Compression.FP16, 2 * N_FLOATS, 2**-10),
        (Compression.BF16, 2 * N_FLOATS, 2**-7),
        (Compression.INT8, N_FLOATS + 8, 4 / 127),
    ],
)
def test_dense_codecs_take_fewer_bytes_and_lose_little(kind: Compression, n_bytes: int, error: float) -> None:
    values = torch.randn(N_FLOATS, generator=torch.Generator().manual_seed(1)).clamp(-4, 4)
    read, taken = sent(kind, values)
    assert taken == n_bytes
    assert float((read - values).abs().max()) <= 4 * error


@pytest.mark.parametrize("is_finite", [True, False])
def test_every_half_is_read_as_what_it_is(is_finite: bool) -> None:
    """Zeros of both signs, denormal and normal numbers, and what is none."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)] if is_finite else halves
    read = np.empty(len(halves), np.float32)
    decode(Codec.FLOAT16, as_bytes(halves), read)
    np.testing.assert_array_equal(read, halves.astype(np.float32))
    assert np.array_equal(np.signbit(read), np.signbit(halves))


def test_topk_sends_the_largest_of_all_signs_exactly() -> None:
    values = torch.randn(N_FLOATS, generator=torch.Generator().manual_seed(2))
    read, taken = sent(Compression.TOPK, values, keep=0.01)
    k = math.ceil(0.01 * N_FLOATS)
    assert taken == 8 * k
    kept = read.nonzero().flatten()
    assert len(kept) == k
    assert torch.equal(read[kept], values[kept])
    assert float(values[kept].abs().min()) >= float(values[read == 0].abs().max())


@pytest.mark.parametrize("kind", LOSSY)
def test_zeros_stay_zeros_and_what_is_not_finite_does_not_pass_for_a_number(kind: Compression) -> None:
    read, _ = sent(kind, torch.zeros(100))
    assert torch.equal(read, torch.zeros(100))
    read, _ = sent(kind, torch.full((100,), math.nan))
    assert not bool(torch.isfinite(read).all())


@given(
    codec=st.sampled_from([kind.codec for kind in LOSSY]),
    n_floats=st.integers(1, 3 * BLOCK_FLOATS),
    payload=st.binary(min_size=1, max_size=4096),
)
def test_any_payload_is_read_or_refused(codec: Codec, n_floats: int, payload: bytes) -> None:
    header = Header(FrameType.PUSH, length=len(payload), codec=codec)
    assert header.length <= MAX_PAYLOAD_BYTES
    target = np.zeros(n_floats, np.float32)
    try:
        check_length(header, n_floats)
        decode(codec, memoryview(bytearray(payload)), target)
    except WireError:
        return
    assert target.shape == (n_floats,)


@pytest.mark.parametrize("kind", LOSSY)
def test_training_converges_where_plain_gradients_take_it(kind: Compression) -> None:
    """Least squares by gradient descent on two workers, whose pushes are summed as a server does."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(400, 64, generator=generator)
    wanted = torch.randn(64, generator=generator)
    outputs = inputs @ wanted
    compressors = [Compressor(kind, 64, keep=0.1) for _ in range(2)]
    parameters = torch.zeros(64)
    for step in range(600):
        total = torch.zeros(64)
        for compressor, rows in zip(compressors, (slice(0, 200), slice(200, 400)), strict=True):
            gradient = inputs[rows].T @ (inputs[rows] @ parameters - outputs[rows]) / 400
            codec, payload = compressor.encode(gradient, 0)
            read = torch.empty(64)
            decode(codec, as_bytes(payload), read.numpy())
            total += read
            compressor.completed(step + 1)
        parameters -= 0.1 * total
    assert float(torch.linalg.norm(parameters - wanted) / torch.linalg.norm(wanted)) < 1e-2


@pytest.mark.parametrize("kind", FEEDBACK)
def test_what_was_not_said_is_made_up_for(kind: Compression) -> None:
    """Over many steps of the same gradient, what arrives adds up to it but for a bounded remainder."""
    gradient = torch.linspace(-1.0, 1.0, 500)
    compressor = Compressor(kind, 500, keep=0.05)
    total = torch.zeros(500)
    for step in range(200):
        codec, payload = compressor.encode(gradient, 0)
        read = torch.empty(500)
        decode(codec, as_bytes(payload), read.numpy())
        total += read
        compressor.completed(step + 1)
    assert float((total / 200 - gradient).abs().max()) < 0.15


def _bytes(compressor: Compressor, gradient: torch.Tensor) -> bytes:
    return bytes(as_bytes(compressor.encode(gradient, 0)[1]))


@pytest.mark.parametrize("kind", FEEDBACK)
def test_a_repeated_step_sends_the_same_and_a_change_of_membership_keeps_the_residual(kind: Compression) -> None:
    gradient = torch.linspace(-1.0, 1.0, 300)
    compressor = Compressor(kind, 300, keep=0.05)
    first = _bytes(compressor, gradient)
    assert _bytes(compressor, gradient) == first, "the step was cut short: nothing was learned from it"
    compressor.completed(1)
    second = _bytes(compressor, gradient)
    assert second != first
    compressor.joined(1)
    assert _bytes(compressor, gradient) == second, "training goes on where it was"
    compressor.joined(0)
    assert _bytes(compressor, gradient) == first, "training went back: the residual is of a history given up"


@pytest.mark.parametrize(("spec", "keep"), [({}, None), ({"compression": "none"}, None), ({"compression": "topk"}, 1)])
def test_a_job_gets_what_its_specification_says(spec: dict[str, Any], keep: int | None) -> None:
    compressor = make_compressor(JobSpec(name="job", task="tiny_training:make", **spec), 100)
    if keep is None:
        assert compressor is None
    else:
        assert compressor is not None
        assert len(compressor.encode(torch.ones(100), 0)[1]) == 8 * keep
