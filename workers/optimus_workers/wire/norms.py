"""The norm of a gradient that lies in pieces on several servers, the same however it is cut.

Each server sums the squares of its blocks (`ranges.block_floats`) in double precision, each block by itself; worker 0
has the sums of all blocks, in order, and adds them up exactly.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from optimus_workers.wire.memory import Floats

PIECE_FLOATS = 32_768
"""Squared at a time, in memory of the thread's own: it stays in the processor's cache."""
NORM_EPS = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm it divides by."""


_scratch = threading.local()


def block_squares(values: Floats, block_floats: int) -> NDArray[np.float64]:
    """The sum of squares of each block of `values` (n,), which begin at a block's boundary; the last may be shorter."""
    length = max(block_floats, PIECE_FLOATS)  # both are powers of two times 16
    pieces = [_piece_squares(values[first : first + length], block_floats) for first in range(0, len(values), length)]
    return np.concatenate(pieces) if pieces else np.zeros(0)


def _piece_squares(values: Floats, block_floats: int) -> NDArray[np.float64]:
    if not hasattr(_scratch, "squares") or len(_scratch.squares) < len(values):
        _scratch.squares = np.empty(max(len(values), PIECE_FLOATS))
    squares: NDArray[np.float64] = _scratch.squares[: len(values)]
    squares[:] = values
    np.multiply(squares, squares, out=squares)
    whole = len(values) // block_floats * block_floats
    sums: NDArray[np.float64] = squares[:whole].reshape(-1, block_floats).sum(1)
    return sums if whole == len(values) else np.append(sums, squares[whole:].sum())


def clip_coefficient(squares: Iterable[float], max_norm: float) -> float:
    """What to multiply a gradient with so that its norm is at most `max_norm`; `squares` of its blocks.

    As in torch, a gradient that is not finite gives a coefficient that is no number: the loss shows it.
    """
    norm = math.sqrt(math.fsum(squares))
    coefficient = max_norm / (norm + NORM_EPS)
    return min(coefficient, 1.0)
