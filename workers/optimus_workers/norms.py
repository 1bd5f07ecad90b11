"""The norm of a gradient that lies in pieces on several servers, the same however it is cut.

Each server sums the squares of its blocks (`ranges.block_floats`), in double precision and each block by itself;
whoever has the sums of all blocks, in order, adds them up exactly.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

import torch
from torch import Tensor

PIECE_FLOATS = 32_768
"""Squared at a time, in memory of the thread's own: it stays in the processor's cache."""
NORM_EPS = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm it divides by."""


_scratch = threading.local()


def block_squares(values: Tensor, block_floats: int) -> Tensor:
    """The sum of squares of each block of `values` (n,), which begin at a block's boundary; the last may be shorter."""
    piece = max(block_floats, PIECE_FLOATS)  # both are powers of two times 16
    return torch.cat([_piece_squares(part, block_floats) for part in torch.split(values, piece)])


def _piece_squares(values: Tensor, block_floats: int) -> Tensor:
    if not hasattr(_scratch, "squares") or len(_scratch.squares) < len(values):
        _scratch.squares = torch.empty(max(len(values), PIECE_FLOATS), dtype=torch.float64)
    squares = _scratch.squares[: len(values)].copy_(values).square_()
    whole = len(values) // block_floats * block_floats
    sums: Tensor = squares[:whole].view(-1, block_floats).sum(1)
    return sums if whole == len(values) else torch.cat([sums, squares[whole:].sum().view(1)])


def clip_coefficient(squares: Iterable[float], max_norm: float) -> float:
    """What to multiply a gradient with so that its norm is at most `max_norm`; `squares` of its blocks.

    As in torch, a gradient that is not finite gives one that is no number: the loss tells.
    """
    norm = math.sqrt(math.fsum(squares))
    coefficient = max_norm / (norm + NORM_EPS)
    return min(coefficient, 1.0)


def clip(gradient: Tensor, max_norm: float, block_floats: int) -> None:
    """Multiply a whole gradient (n,), in place."""
    coefficient = clip_coefficient(block_squares(gradient, block_floats).tolist(), max_norm)
    if coefficient != 1.0:
        gradient.mul_(coefficient)
