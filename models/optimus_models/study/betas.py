"""Eq. 1 of the Optimus paper for each run, and its coefficients by size of network and GPU type.

    loss / largest loss = 1/(β0·k + β1) + β2,  k in epochs

Here β minimises the squared error of the loss itself. (The scheduler's curve, `LossCurve`, solves the paper's
least-squares problem in 1/(loss - β2) instead, which for a run that goes on to a loss of 1e-7 is all about its end.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from optimus_models.history import FloatArray
from optimus_models.loss.inverse_law import InverseLaw, step_of_loss
from optimus_models.study.runs import Run

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
