"""The curve of a metric such as accuracy: a loss curve of what is missing to the best value there can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray
from optimus_models.loss.curve import LossCurve
from optimus_models.loss.finished_runs import Prior

_LEAST_EVALUATIONS = 3
"""Evaluations needed before the fitted curve may confirm one."""


@dataclass(frozen=True, eq=False)
class MetricCurve:
    """A fitted metric. It rises towards `best` or, if that is None, falls like a loss (error rate, perplexity)."""

    shortfall: LossCurve
    """best - metric, or the metric itself if it falls."""
    best: float | None
    newest: tuple[float, ...]
    """The last two values reported, the newest last."""

    @classmethod
    def fit(
        cls,
        steps: ArrayLike,
        values: ArrayLike,
        *,
        best: float | None = 1.0,
        history: Prior | None = None,
    ) -> MetricCurve:
        """Fit to parallel arrays, as `LossCurve.fit` does. `best`: 1 for an accuracy, 100 for one in per cent.

        `history` holds finished runs of the shortfall.
        """
        metric = np.asarray(values, dtype=np.float64).reshape(-1)
        missing = metric if best is None else best - metric
        return cls(LossCurve.fit(steps, missing, history=history), best, tuple(metric[-2:].tolist()))

    @property
    def n_points(self) -> int:
        return self.shortfall.n_points

    @property
    def confidence(self) -> float:
        return self.shortfall.confidence

    def shortfall_at(self, target: float) -> float:
        """The shortfall of a metric that has the value `target`."""
        return target if self.best is None else self.best - target

    def has_reached(self, target: float) -> bool:
        """Whether the last evaluation reached `target`, and that was no accident: the one before it did too, or the
        fitted curve of three evaluations or more does."""
        reached = [value <= target if self.best is None else value >= target for value in self.newest]
        if not reached or not reached[-1]:
            return False
        if len(reached) == 2 and reached[0]:
            return True
        at_last = float(self.shortfall.predict([self.shortfall.last_step])[0])
        return self.n_points >= _LEAST_EVALUATIONS and at_last <= self.shortfall_at(target)

    def predict(self, steps: ArrayLike) -> FloatArray:
        """Expected metric at each of `steps`; NaN when nothing is known."""
        missing = self.shortfall.predict(steps)
        return missing if self.best is None else self.best - missing

    def predict_interval(self, steps: ArrayLike, coverage: float = 0.8) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high), each shaped like `steps`, that hold the smoothed metric with probability `coverage`."""
        low, high = self.shortfall.predict_interval(steps, coverage)
        return (low, high) if self.best is None else (self.best - high, self.best - low)
