"""The job's recent training loss, as its workers tell it. Pure."""

from __future__ import annotations

import math
from collections import deque

MAX_STEPS = 200
"""An epoch's worth of steps is averaged, but no more than this."""


class LossWindow:
    """Mean loss over the examples of the last steps."""

    def __init__(self, n_steps: float) -> None:
        self._recent: deque[tuple[float, int]] = deque(maxlen=max(1, min(MAX_STEPS, math.ceil(n_steps))))
        self._open: tuple[float, int] = (0.0, 0)

    def add(self, loss: float, n_examples: int) -> None:
        """One worker's share of a step."""
        if n_examples:
            total, n = self._open
            self._open = (total + loss * n_examples, n + n_examples)

    def close_step(self) -> None:
        """All shares of a step are in."""
        if self._open[1]:
            self._recent.append(self._open)
        self._open = (0.0, 0)

    def drop_step(self) -> None:
        """The step at hand will be repeated."""
        self._open = (0.0, 0)

    @property
    def mean(self) -> float | None:
        """None when there is none yet or it is not finite."""
        n_examples = sum(n for _, n in self._recent)
        mean = sum(total for total, _ in self._recent) / n_examples if n_examples else math.nan
        return mean if math.isfinite(mean) else None
