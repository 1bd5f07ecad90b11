"""Clipping by the one who has the whole gradient: a worker of async training, or of an all-reduce group."""

from __future__ import annotations

import torch
from torch import Tensor

from optimus_workers.norms import block_squares, clip_coefficient


def clip(gradient: Tensor, max_norm: float, block_floats: int) -> None:
    """Multiply a whole gradient (n,), in place, so that its norm is at most `max_norm`."""
    if gradient.device.type == "cpu":
        squares = block_squares(gradient.numpy(), block_floats).tolist()
    else:
        squares = [square_on_device(gradient)]
    coefficient = clip_coefficient(squares, max_norm)
    if coefficient != 1.0:
        gradient.mul_(coefficient)


def square_on_device(gradient: Tensor) -> float:
    """|gradient|², in double precision, computed where the gradient is: nothing is copied from a GPU but the sum."""
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
