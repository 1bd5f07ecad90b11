"""Curves that tests generate from known parameters, and histories that no model may stumble over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@pytest.fixture
def make_losses() -> Callable[..., FloatArray]:
    """Losses of Eq. 1 at `steps`, times `scale`, with Gaussian noise of `noise` times the scale."""

    def make(
        steps: FloatArray,
        *,
        beta: tuple[float, float, float] = (0.05, 1.1, 0.15),
        scale: float = 1.0,
        noise: float = 0.0,
        seed: int = 0,
    ) -> FloatArray:
        clean = 1.0 / (beta[0] * steps + beta[1]) + beta[2]
        jitter = np.random.default_rng(seed).normal(0.0, noise, len(steps)) if noise else np.zeros(len(steps))
        losses: FloatArray = scale * (clean + jitter)
        return losses

    return make
