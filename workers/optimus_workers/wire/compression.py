"""Gradients in fewer bytes: how a chunk of them is written and read back. Decoding gives the same floats everywhere.

    fp16, bf16   2 bytes each; fp16 clamps at its largest number
    int8         one signed byte each, and a float32 scale for every 4096 of them
    topk         the fraction of largest magnitude in each chunk, with their places; all others count as 0

The loss of int8 and topk is made up for by error feedback (`worker/compressor.py`).
"""

from __future__ import annotations

import math
from enum import StrEnum

import torch
from torch import Tensor

from optimus_workers.wire.errors import WireError
from optimus_workers.wire.frames import FLOAT_BYTES, Codec, Header

BLOCK_FLOATS = 4096
"""Values that share a scale: small enough that one outlier costs few others their digits, 0.1 % of the bytes."""
_INT8_MAX = 127.0
_HALF_MAX = torch.finfo(torch.float16).max
_HALVES = {Codec.FLOAT16: torch.float16, Codec.BFLOAT16: torch.bfloat16}
_ENTRY_BYTES = 8
"""Of a value in a top-k payload: its place and itself."""


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
        legal = header.length % _ENTRY_BYTES == 0 and header.length // _ENTRY_BYTES <= n_floats
    else:
        legal = header.length == _fixed_bytes(header.codec, n_floats)
    if not legal:
        raise WireError(f"{header.length} bytes of {header.codec.name} for {n_floats} floats")


def _fixed_bytes(codec: Codec, n_floats: int) -> int:
    if codec in _HALVES:
        return 2 * n_floats
    if codec is Codec.INT8:
        return n_floats + FLOAT_BYTES * math.ceil(n_floats / BLOCK_FLOATS)
    return FLOAT_BYTES * n_floats


def encode(codec: Codec, values: Tensor, keep: float = 1.0) -> Tensor:
    """A chunk of float32 values as bytes, shape (n_bytes,). `keep`: the fraction that top-k keeps, one at least."""
    if codec is Codec.FLOAT16:
        return values.clamp(-_HALF_MAX, _HALF_MAX).to(torch.float16).view(torch.uint8)
    if codec is Codec.BFLOAT16:
        return values.to(torch.bfloat16).view(torch.uint8)
    if codec is Codec.INT8:
        return _encode_int8(values)
    if codec is Codec.TOP_K:
        return _encode_top_k(values, max(1, math.ceil(keep * len(values))))
    raise ValueError(f"{codec.name} needs no encoding")


def decode(codec: Codec, payload: memoryview, target: Tensor) -> None:
    """Write the values of a payload of checked length into `target`. Raises `WireError`."""
    if codec in _HALVES:
        target.copy_(torch.frombuffer(payload, dtype=_HALVES[codec]))
    elif codec is Codec.INT8:
        _decode_int8(payload, target)
    elif codec is Codec.TOP_K:
        _decode_top_k(payload, target)
    else:
        raise WireError(f"{codec.name} is not compressed")


def _encode_int8(values: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(values, (0, -len(values) % BLOCK_FLOATS)).view(-1, BLOCK_FLOATS)
    scales = padded.abs().amax(1) / _INT8_MAX
    # A block of zeros has scale 0; any divisor will do for it.
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (padded / divisors[:, None]).round_().clamp_(-_INT8_MAX, _INT8_MAX).nan_to_num_(0.0).to(torch.int8)
    return torch.cat([scales.view(torch.uint8), numbers.view(-1)[: len(values)].view(torch.uint8)])


def _decode_int8(payload: memoryview, target: Tensor) -> None:
    n_blocks = math.ceil(len(target) / BLOCK_FLOATS)
    scales = torch.frombuffer(payload, dtype=torch.float32, count=n_blocks)
    target.copy_(torch.frombuffer(payload, dtype=torch.int8, offset=FLOAT_BYTES * n_blocks))
    n_whole = len(target) // BLOCK_FLOATS
    target[: n_whole * BLOCK_FLOATS].view(-1, BLOCK_FLOATS).mul_(scales[:n_whole, None])
    if n_whole < n_blocks:
        target[n_whole * BLOCK_FLOATS :].mul_(scales[n_whole])


def _encode_top_k(values: Tensor, k: int) -> Tensor:
    places = torch.topk(values.abs(), k, sorted=False).indices.sort().values
    return torch.cat([places.to(torch.int32).view(torch.uint8), values[places].view(torch.uint8)])


def _decode_top_k(payload: memoryview, target: Tensor) -> None:
    k = len(payload) // _ENTRY_BYTES
    places = torch.frombuffer(payload, dtype=torch.int32, count=k).long()
    in_order = bool((places[1:] > places[:-1]).all())
    if not in_order or int(places[0]) < 0 or int(places[-1]) >= len(target):
        raise WireError("places of a top-k payload are not increasing, or outside the chunk")
    target.zero_()
    target[places] = torch.frombuffer(payload, dtype=torch.float32, offset=FLOAT_BYTES * k)
