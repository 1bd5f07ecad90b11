"""Training runs as a study sees them, their fits by Eq. 1, and the regression of these on size and GPU type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from optimus_models.history import FloatArray
from optimus_models.loss.inverse_law import InverseLaw, step_of_loss

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


_START = (0.4, 0.6, 0.0)


class BetaFit(NamedTuple):
    """Eq. 1 fitted to one run."""

    layers: int
    gpu: str
    law: InverseLaw
    scale: float
    """The largest loss: what the law's losses are fractions of."""
    error: float
    """Root mean squared residual as a fraction of the largest loss, over all epochs ..."""
    early_error: float
    """... and over the epochs until the loss was below a tenth of its largest."""
    epoch_seconds: float | None

    def losses(self, epochs: FloatArray) -> FloatArray:
        return self.law.loss(epochs) * self.scale

    def epoch_of(self, loss: float) -> float:
        """When the fitted curve reaches `loss`; inf if it never does."""
        return step_of_loss(self.law, loss / self.scale)


def fit_betas(run: Run) -> BetaFit:
    """Fit to all finite losses of `run`; a run without any gives a flat law."""
    known = np.isfinite(run.losses)
    epochs, scale = run.epochs[known], run.largest_loss
    losses = run.losses[known] / scale
    law = InverseLaw(0.0, 1.0, 0.0)
    residuals = np.zeros(0)

    def misfit(beta: FloatArray) -> FloatArray:
        return np.asarray(InverseLaw(*beta).loss(epochs) - losses)

    if len(losses):
        solution = least_squares(
            misfit,
            _START,
            bounds=([0.0, 1e-6, 0.0], np.inf),
            x_scale=(0.1, 1.0, 0.01),
        )
        law, residuals = InverseLaw(*(float(beta) for beta in solution.x)), solution.fun
    early = residuals[: int(np.argmax(losses < 0.1)) if (losses < 0.1).any() else len(losses)]
    return BetaFit(run.layers, run.gpu, law, scale, _rms(residuals), _rms(early), run.epoch_seconds)


def _rms(residuals: FloatArray) -> float:
    return float(np.sqrt(np.mean(residuals**2))) if len(residuals) else 0.0


class BetaRegression(NamedTuple):
    """Each of β0, β1, β2 and the largest loss as a + b·layers + c(GPU type): ordinary least squares."""

    gpus: tuple[str, ...]
    coefficients: FloatArray
    """(2 + number of GPU types - 1, 4)."""

    @classmethod
    def fit(cls, fits: Sequence[BetaFit]) -> BetaRegression:
        gpus = tuple(sorted({fit.gpu for fit in fits}))
        rows = np.array([_row(fit.layers, fit.gpu, gpus) for fit in fits])
        values = np.array([(*fit.law, fit.scale) for fit in fits])
        coefficients, *_ = np.linalg.lstsq(rows, values, rcond=None)
        return cls(gpus, np.asarray(coefficients))

    def predict(self, layers: int, gpu: str) -> BetaFit:
        """What the regression says of a network of that size. A GPU type it has never seen counts as the first."""
        beta0, beta1, beta2, scale = np.array(_row(layers, gpu, self.gpus)) @ self.coefficients
        law = InverseLaw(max(float(beta0), 0.0), max(float(beta1), 1e-6), max(float(beta2), 0.0))
        return BetaFit(layers, gpu, law, max(float(scale), 1e-12), float("nan"), float("nan"), None)


def _row(layers: int, gpu: str, gpus: tuple[str, ...]) -> list[float]:
    return [1.0, float(layers), *(float(gpu == other) for other in gpus[1:])]
