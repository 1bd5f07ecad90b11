"""Compressed pushes with error feedback: the next push makes up for what one push could not say.

`encode` writes a chunk in fewer bytes; `wire/compression.py` has the formats and reads them. With
u = gradient + residual, the worker sends Q(u) and keeps u - Q(u) as the residual of the next step (Seide et al. 2014;
Karimireddy et al. 2019). The residual belongs to the process:

* it becomes valid when the step is complete: a step that is cut short and repeated starts from the same residual;
* it survives every change of membership that continues training; the micro-batches of a worker do not matter, for
  residuals are parts of the sum over all workers;
* it is dropped when training goes back to an older version: the history that it belongs to is given up;
* a worker that joins begins without one; that of a worker that leaves is lost (part of one step's gradient).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optimus_contract.job import JobSpec
from optimus_workers.wire.compression import BLOCK_FLOATS, Compression, decode
from optimus_workers.wire.data import as_bytes
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


DEFAULT_KEEP = 0.01
"""The fraction that topk sends unless the job says otherwise."""


class Compressor:
    """Encodes chunks of one worker's pushes."""

    def __init__(self, compression: Compression, parameter_floats: int, keep: float = DEFAULT_KEEP) -> None:
        """`keep`: the fraction that topk sends."""
        self._codec = compression.codec
        self._keep = keep
        self._version = 0
        has_feedback = compression in (Compression.INT8, Compression.TOPK)
        self._residual = torch.zeros(parameter_floats) if has_feedback else None
        self._next = torch.zeros(parameter_floats) if has_feedback else None

    def encode(self, gradient: Tensor, first: int) -> tuple[Codec, NDArray[np.uint8]]:
        """The chunk that begins at `first`, as bytes."""
        if self._residual is None or self._next is None:
            return self._codec, encode(self._codec, gradient)
        part = slice(first, first + len(gradient))
        wanted = torch.add(gradient, self._residual[part])
        payload = encode(self._codec, wanted, self._keep)
        decode(self._codec, as_bytes(payload), self._next[part].numpy())
        torch.sub(wanted, self._next[part], out=self._next[part])
        return self._codec, payload

    def completed(self, version: int) -> None:
        """The step is applied everywhere and training is at `version`."""
        self._version = version
        self._residual, self._next = self._next, self._residual

    def joined(self, version: int) -> None:
        """Training goes on from `version` in a new membership."""
        if version < self._version and self._residual is not None:
            self._residual.zero_()
        self._version = version


def make_compressor(spec: JobSpec, parameter_floats: int) -> Compressor | None:
    """The compressor that a job asks for; None: pushes are sent as they are."""
    if spec.architecture == "allreduce":
        return None  # torch compresses what travels among workers
    compression = Compression(spec.compression)
    if compression is Compression.NONE:
        return None
    return Compressor(compression, parameter_floats, spec.compression_keep or DEFAULT_KEEP)
