"""A better prior for a run of another network: the shape of earlier curves, stretched in time by an unknown factor.

Networks differ by how many epochs they need much more than by the shape of their curves. So the loss of a new run is

    loss(k) = scale · shape(k / s),     log s ~ Normal(slope · log(layers / typical layers), spread²) before its epochs,

shape: geometric mean of the earlier runs (each as a fraction of its largest loss); slope: how the stretch of those goes
with their size. The first epochs of the run itself make the posterior of s, on a grid. The spread is not what the
earlier runs show (they are of few families) but at least a factor of 1.6, because an unknown family may differ more
than its siblings do from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optimus_models.cost import Estimate
from optimus_models.history import FloatArray
from optimus_models.study.runs import Run

LEAST_SPREAD = 0.5
"""One sigma of log s before the first epoch."""
_POINT_NOISE = 0.15
"""How far a loss lies from the stretched shape, in the logarithm."""
_INDEPENDENT = 3.0
"""Neighbouring epochs deviate together: all points of a run count as at most so many."""
_STRETCHES = np.exp(np.linspace(-2.5, 2.5, 401))
_LEAST_LOSS = 1e-9
"""As a fraction of the largest loss: below it, logarithms only describe rounding."""


class StretchedCurve(NamedTuple):
    """What is believed of one run after its first epochs."""

    template: Template
    scale: float
    """The largest loss."""
    weights: FloatArray
    """(m,) posterior of the stretch."""

    @property
    def stretch(self) -> float:
        """Posterior mean, in the logarithm."""
        return float(np.exp(self.weights @ np.log(_STRETCHES)))

    def losses(self, epochs: FloatArray) -> FloatArray:
        """(n,) at the mean stretch."""
        return self.scale * self.template.shape_at(epochs / self.stretch)

    def interval(self, epochs: FloatArray, coverage: float = 0.8) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high), each (n,): from the uncertain stretch alone."""
        slow, fast = self._quantile(0.5 + coverage / 2.0), self._quantile(0.5 - coverage / 2.0)
        low, high = (self.scale * self.template.shape_at(epochs / stretch) for stretch in (fast, slow))
        return low, high

    def epoch_of(self, loss: float, coverage: float = 0.8) -> Estimate:
        """When the loss is reached; inf if the shape never goes so low."""
        at = self.template.epoch_of(loss / self.scale)
        return Estimate(
            at * self.stretch, at * self._quantile(0.5 - coverage / 2.0), at * self._quantile(0.5 + coverage / 2.0)
        )

    def _quantile(self, probability: float) -> float:
        return float(np.interp(probability, np.cumsum(self.weights), _STRETCHES))


class Template(NamedTuple):
    """The shape that earlier runs share."""

    logs: FloatArray
    """(n,) logarithm of the loss as a fraction of the largest, at epochs 1..n; never rising."""
    scale: float
    """A typical largest loss."""
    spread: float
    """One sigma of log s for a run of another network."""
    slope: float = 0.0
    """Of log s against the logarithm of the size ..."""
    typical_layers: float = 1.0
    """... from this one on."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Template:
        """From at least one run."""
        length = min(len(run.losses) for run in runs)
        curves = np.array([np.log(np.maximum(_filled(run)[:length], _LEAST_LOSS)) for run in runs])
        logs = np.minimum.accumulate(curves.mean(axis=0))
        scale = float(np.median([run.largest_loss for run in runs]))
        alone = cls(logs, scale, LEAST_SPREAD)
        stretches = np.log([alone.given(run.losses[: len(run.losses) // 4 + 1]).stretch for run in runs])
        sizes = np.log([float(run.layers) for run in runs])
        apart = sizes - sizes.mean()
        # The added 0.1 stands for having seen nothing: sizes that hardly differ say nothing about a slope.
        slope = float(apart @ stretches / (apart @ apart + 0.1))
        around = float(np.std(stretches - slope * apart))
        return cls(logs, scale, max(LEAST_SPREAD, around), slope, float(np.exp(sizes.mean())))

    def given(self, first_losses: FloatArray, layers: float | None = None) -> StretchedCurve:
        """What the first epochs of a run (m may be 0; NaN are left out) and its size, if known, say about it."""
        finite = np.isfinite(first_losses) & (first_losses > 0)
        scale = float(np.max(first_losses[finite])) if finite.any() else self.scale
        epochs = np.arange(1.0, len(first_losses) + 1)[finite]
        logs = np.log(np.maximum(first_losses[finite] / scale, _LEAST_LOSS))
        expected = np.log(self.shape_at(epochs / _STRETCHES[:, None]))
        counted = min(1.0, _INDEPENDENT / max(len(epochs), 1))
        misfit = counted * ((logs - expected) ** 2).sum(axis=1) / _POINT_NOISE**2
        centre = 0.0 if layers is None else self.slope * float(np.log(layers / self.typical_layers))
        plausibility = -0.5 * (misfit + ((np.log(_STRETCHES) - centre) / self.spread) ** 2)
        weights = np.exp(plausibility - plausibility.max())
        return StretchedCurve(self, scale, weights / weights.sum())

    def shape_at(self, epochs: FloatArray) -> FloatArray:
        """The shape between the epochs that were logged; before the first and after the last it stays."""
        logs = np.interp(epochs, np.arange(1.0, len(self.logs) + 1), self.logs)
        return np.asarray(np.exp(logs))

    def epoch_of(self, share: float) -> float:
        below = np.flatnonzero(self.logs <= np.log(max(share, 1e-300)))
        if not len(below):
            return float("inf")
        last = int(below[0])
        if last == 0:
            return 1.0
        above, at = self.logs[last - 1], self.logs[last]
        return last + float((above - np.log(share)) / (above - at))


def _filled(run: Run) -> FloatArray:
    """(n,) losses as fractions of the largest; gaps interpolated."""
    known = np.isfinite(run.losses)
    return np.interp(run.epochs, run.epochs[known], run.losses[known]) / run.largest_loss
