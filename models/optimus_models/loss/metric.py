"""The curve of a metric such as accuracy: a loss curve of what is missing to the best value there can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray
from optimus_models.loss.curve import LossCurve
from optimus_models.loss.finished_runs import Prior


@dataclass(frozen=True, eq=False)
class MetricCurve:
    """A fitted metric. It rises towards `best` or, if that is None, falls like a loss (error rate, perplexity)."""

    shortfall: LossCurve
    """best - metric, or the metric itself if it falls."""
    best: float | None

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
        return cls(LossCurve.fit(steps, missing, history=history), best)

    @property
    def n_points(self) -> int:
        return self.shortfall.n_points

    @property
    def confidence(self) -> float:
        return self.shortfall.confidence

    def shortfall_at(self, target: float) -> float:
        """The shortfall of a metric that has the value `target`."""
        return target if self.best is None else self.best - target

    def has_reached(self, target: float, step: float) -> bool:
        """Whether the fitted curve is at `target` or better; False when nothing is known."""
        return bool(self.shortfall.predict([step])[0] <= self.shortfall_at(target))

    def predict(self, steps: ArrayLike) -> FloatArray:
        """Expected metric at each of `steps`; NaN when nothing is known."""
        missing = self.shortfall.predict(steps)
        return missing if self.best is None else self.best - missing

    def predict_interval(self, steps: ArrayLike, coverage: float = 0.8) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high), each shaped like `steps`, that hold the smoothed metric with probability `coverage`."""
        low, high = self.shortfall.predict_interval(steps, coverage)
        return (low, high) if self.best is None else (self.best - high, self.best - low)
