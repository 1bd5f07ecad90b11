"""Gradients in fewer bytes: the formats of a chunk, and how it is read (`worker/compression.py` writes it).
Decoding gives the same floats everywhere.

    fp16, bf16   2 bytes each; fp16 clamps at its largest number
    int8         one signed byte each, and a float32 scale for every 4096 of them
    topk         the fraction of largest magnitude in each chunk, with their places; all others count as 0

Error feedback makes up for the loss of int8 and topk (`worker/compression.py`).
"""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from optimus_workers.errors import WireError
from optimus_workers.wire.frames import FLOAT_BYTES, Codec, Header
from optimus_workers.wire.memory import Floats

BLOCK_FLOATS = 4096
"""Values that share a scale: small enough that one outlier costs few others their digits, 0.1 % of the bytes."""
ENTRY_BYTES = 8
"""A value in a top-k payload: its place and the value."""
_SIGN_AND_NUMBER = np.int32(-0x7000_2000)  # 0x8fffe000
_HALF_EXPONENT = np.uint16(0x7C00)
_EXPONENTS_APART = np.float32(2.0**112)


class Compression(StrEnum):
    """What a job may ask for."""

    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    TOPK = "topk"

    @property
    def codec(self) -> Codec:
        return _CODECS[self]


_CODECS = {
    Compression.NONE: Codec.FLOAT32,
    Compression.FP16: Codec.FLOAT16,
    Compression.BF16: Codec.BFLOAT16,
    Compression.INT8: Codec.INT8,
    Compression.TOPK: Codec.TOP_K,
}


def check_length(header: Header, n_floats: int) -> None:
    """Raises `WireError` unless the header announces as many bytes as `n_floats` values take."""
    if header.codec is Codec.TOP_K:
        legal = header.length % ENTRY_BYTES == 0 and header.length // ENTRY_BYTES <= n_floats
    else:
        legal = header.length == _fixed_bytes(header.codec, n_floats)
    if not legal:
        raise WireError(f"{header.length} bytes of {header.codec.name} for {n_floats} floats")


def _fixed_bytes(codec: Codec, n_floats: int) -> int:
    if codec in (Codec.FLOAT16, Codec.BFLOAT16):
        return 2 * n_floats
    if codec is Codec.INT8:
        return n_floats + FLOAT_BYTES * math.ceil(n_floats / BLOCK_FLOATS)
    return FLOAT_BYTES * n_floats


def decode(codec: Codec, payload: memoryview, target: Floats) -> None:
    """Write the values of a payload of checked length into `target`. Raises `WireError`."""
    if codec is Codec.FLOAT16:
        _decode_float16(np.frombuffer(payload, np.uint16), target)
    elif codec is Codec.BFLOAT16:
        bits = target.view(np.uint32)
        bits[:] = np.frombuffer(payload, np.uint16)
        np.left_shift(bits, 16, out=bits)
    elif codec is Codec.INT8:
        _decode_int8(payload, target)
    elif codec is Codec.TOP_K:
        _decode_top_k(payload, target)
    else:
        raise WireError(f"{codec.name} is not compressed")


def _decode_float16(halves: NDArray[np.uint16], target: Floats) -> None:
    """What `target[:] = halves` is for halves, without numpy's conversion, which goes one by one.

    Sign, exponent and fraction move to where float32 has them; what is left is that its exponents count from
    elsewhere, which a multiplication by a power of two makes up for, exactly and for denormal numbers too.
    """
    if (halves & _HALF_EXPONENT == _HALF_EXPONENT).any():  # not numbers, or not finite: a worker's loss is no number
        target[:] = halves.view(np.float16)
        return
    bits = target.view(np.int32)
    bits[:] = halves.view(np.int16)
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _SIGN_AND_NUMBER, out=bits)
    np.multiply(target, _EXPONENTS_APART, out=target)


def _decode_int8(payload: memoryview, target: Floats) -> None:
    n_blocks = math.ceil(len(target) / BLOCK_FLOATS)
    scales = np.frombuffer(payload, np.float32, n_blocks)
    target[:] = np.frombuffer(payload, np.int8, offset=FLOAT_BYTES * n_blocks)
    n_whole = len(target) // BLOCK_FLOATS
    blocks = target[: n_whole * BLOCK_FLOATS].reshape(-1, BLOCK_FLOATS)
    np.multiply(blocks, scales[:n_whole, None], out=blocks)
    if n_whole < n_blocks:
        target[n_whole * BLOCK_FLOATS :] *= scales[n_whole]


def _decode_top_k(payload: memoryview, target: Floats) -> None:
    k = len(payload) // ENTRY_BYTES
    places = np.frombuffer(payload, np.int32, k)
    in_order = bool((places[1:] > places[:-1]).all())
    if not in_order or int(places[0]) < 0 or int(places[-1]) >= len(target):
        raise WireError("places of a top-k payload are not increasing, or outside the chunk")
    target.fill(0.0)
    target[places] = np.frombuffer(payload, np.float32, offset=FLOAT_BYTES * k)
