"""Compressed pushes with error feedback: what one push could not say, the next one makes up for.

With u = gradient + residual, the worker sends Q(u) and keeps u - Q(u) as the residual of the next step (Seide et al.
2014; Karimireddy et al. 2019). The residual belongs to the process:

* it becomes valid when the step is complete: a step that is cut short and repeated starts from the same residual;
* it survives every change of membership that goes on from where training was; what slots the worker computes does
  not matter, for residuals are parts of the sum over all workers;
* it is dropped when training goes back to an older version: the history that it belongs to is given up;
* a worker that joins begins without one; that of a worker that leaves is lost (part of one step's gradient).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optimus_workers.wire.compression import Compression, decode
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.frames import Codec
from optimus_workers.worker.encoding import encode

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


def make_compressor(spec: Mapping[str, Any], parameter_floats: int) -> Compressor | None:
    """What a `JobSpecBody` asks for; None: pushes are sent as they are."""
    if spec.get("architecture") == "allreduce":
        return None  # torch compresses what travels among workers
    compression = Compression(spec.get("compression") or "none")
    if compression is Compression.NONE:
        return None
    return Compressor(compression, parameter_floats, float(spec.get("compression_keep") or DEFAULT_KEEP))
