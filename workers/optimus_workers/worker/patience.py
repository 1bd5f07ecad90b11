"""How long training code may give no sign before it counts as hanging."""

from __future__ import annotations

FIRST_SECONDS = 600.0
"""Patience with the first steps: data may have to be fetched, kernels to be compiled."""
MIN_SECONDS = 60.0
PATIENCE = 20.0
"""In slowest steps so far."""
N_LEARNED = 3
"""Steps after which the slowest one counts."""


class Patience:
    """Learned from the steps so far, unless the job says how long (`hang_seconds`)."""

    def __init__(self, limit_seconds: float | None = None) -> None:
        self._limit = limit_seconds
        self._slowest = 0.0
        self._n_steps = 0

    @property
    def seconds(self) -> float:
        """How long the present step may take."""
        if self._limit is not None:
            return self._limit
        return FIRST_SECONDS if self._n_steps < N_LEARNED else max(MIN_SECONDS, PATIENCE * self._slowest)

    def took(self, seconds: float) -> None:
        """A step was done within so many seconds."""
        self._slowest = max(self._slowest, seconds)
        self._n_steps += 1
