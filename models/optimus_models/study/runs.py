"""Training runs as a study sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray

DEFAULT_LOSS_SHARE = 0.1
"""Without accuracies and without a wish, a run has arrived when its loss is this part of its largest."""


class Run(NamedTuple):
    """One logged run; arrays (n,), one value per epoch 1..n, NaN where nothing was logged."""

    layers: int
    """The size of the network: what the curves are compared by."""
    gpu: str
    losses: FloatArray
    accuracies: FloatArray
    """Training accuracy, 0 to 1."""
    seconds: FloatArray
    """Of each epoch."""
    parameters: float | None = None

    @property
    def epochs(self) -> FloatArray:
        return np.arange(1.0, len(self.losses) + 1)

    @property
    def largest_loss(self) -> float:
        """Above 0."""
        finite = self.losses[np.isfinite(self.losses)]
        return max(float(np.max(finite, initial=0.0)), 1e-12)

    @property
    def epoch_seconds(self) -> float | None:
        """The median: first epochs warm up and shared GPUs stall."""
        logged = self.seconds[np.isfinite(self.seconds) & (self.seconds > 0)]
        return float(np.median(logged)) if len(logged) else None


class Target(NamedTuple):
    """What a run is to reach."""

    loss: float
    accuracy: float | None
    """None: the target is the loss itself."""

    @classmethod
    def of(cls, runs: Iterable[Run], *, accuracy: float | None, loss: float | None) -> Target:
        """The target as a loss. For an accuracy: the median loss of `runs` at their first epoch with it, because a loss
        curve knows nothing of accuracies. Without either, a tenth of the median largest loss.
        """
        known = list(runs)
        if loss is not None:
            return cls(loss, None)
        if accuracy is not None:
            firsts = [(run, _first(run.accuracies >= accuracy)) for run in known]
            losses = [float(run.losses[epoch - 1]) for run, epoch in firsts if epoch is not None]
            losses = [value for value in losses if np.isfinite(value)]
            if losses:
                return cls(float(np.median(losses)), accuracy)
        return cls(DEFAULT_LOSS_SHARE * float(np.median([run.largest_loss for run in known])), None)


def first_epoch_at(run: Run, target: Target) -> int | None:
    """The first epoch (from 1) that reaches `target`; None if none does."""
    if target.accuracy is not None:
        return _first(run.accuracies >= target.accuracy)
    return _first(run.losses <= target.loss)


def _first(reached: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | None:
    return int(np.argmax(reached)) + 1 if reached.any() else None
