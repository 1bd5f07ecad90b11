"""Gradients in fewer bytes: how a worker writes a chunk of them (`wire/compression.py` tells the formats)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optimus_workers.wire.compression import BLOCK_FLOATS
from optimus_workers.wire.frames import Codec

_INT8_MAX = 127.0
_HALF_MAX = torch.finfo(torch.float16).max


def encode(codec: Codec, values: Tensor, keep: float = 1.0) -> NDArray[np.uint8]:
    """A chunk of float32 values as bytes, shape (n_bytes,). `keep`: the fraction that top-k keeps, one at least."""
    return _encoded(codec, values, keep).numpy()


def _encoded(codec: Codec, values: Tensor, keep: float) -> Tensor:
    if codec is Codec.FLOAT16:
        return values.clamp(-_HALF_MAX, _HALF_MAX).to(torch.float16).view(torch.uint8)
    if codec is Codec.BFLOAT16:
        return values.to(torch.bfloat16).view(torch.uint8)
    if codec is Codec.INT8:
        return _encode_int8(values)
    if codec is Codec.TOP_K:
        return _encode_top_k(values, max(1, math.ceil(keep * len(values))))
    raise ValueError(f"{codec.name} needs no encoding")


def _encode_int8(values: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(values, (0, -len(values) % BLOCK_FLOATS)).view(-1, BLOCK_FLOATS)
    scales = padded.abs().amax(1) / _INT8_MAX
    # A block of zeros has scale 0; any divisor will do for it.
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (padded / divisors[:, None]).round_().clamp_(-_INT8_MAX, _INT8_MAX).nan_to_num_(0.0).to(torch.int8)
    return torch.cat([scales.view(torch.uint8), numbers.view(-1)[: len(values)].view(torch.uint8)])


def _encode_top_k(values: Tensor, k: int) -> Tensor:
    places = torch.topk(values.abs(), k, sorted=False).indices.sort().values
    return torch.cat([places.to(torch.int32).view(torch.uint8), values[places].view(torch.uint8)])
