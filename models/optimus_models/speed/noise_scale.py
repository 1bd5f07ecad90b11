"""How much a larger batch helps: the noise of gradients against what they agree on.

The gradient of B examples is the true gradient G plus noise of covariance Σ/B. With the *noise scale* N = tr(Σ)/|G|²,
in examples, a step with B examples makes 1/(1 + N/B) of the progress that it would make without noise. So a step with B
examples is worth

    gain(B) = (1 + N/M) / (1 + N/B)

steps with M: B/M of them while both are far below N, no more than 1 + N/M ever. This is the efficiency of Pollux,
(φ + M)/(φ + B) for its φ = N, times the batch, B/M. N grows during training, as the gradient becomes small.

References: McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, section 2 and appendix A; Qiao et
al., "Pollux", OSDI 2021, section 3.1; Johnson et al., "AdaScale SGD", ICML 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray

_FADING = 0.6
"""A reading counts so much of the next one: N changes slowly, one reading errs by a fifth."""
_OTHERS_READINGS = 0.5
"""What other jobs of the same kind did counts as so many readings."""
_LEAST, _MOST = 1e-6, 1e12
"""Readings are taken to be within these: a gradient may vanish."""


def gain(batches: ArrayLike, initial: float, noise_scale: float) -> FloatArray:
    """(n,) steps with the batch `initial` that one step with each of `batches` (n,) is worth.

    `noise_scale` in examples, as the batches; 0 if nothing is gained by a larger one.
    """
    b = np.maximum(np.asarray(batches, dtype=np.float64).reshape(-1), 1e-9)
    return np.asarray((1.0 + noise_scale / initial) / (1.0 + noise_scale / b))


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The noise scale of one job now."""

    examples: float
    """0 where nothing is known: then no batch is better than the smallest."""
    n_points: int
    """Readings of the job itself."""

    @classmethod
    def fit(
        cls, steps: ArrayLike, readings: ArrayLike, others: Sequence[tuple[ArrayLike, ArrayLike]] = ()
    ) -> NoiseScale:
        """From `readings`, in examples, at `steps` (scale-invariant, rising); `others` are of jobs of the same kind.

        Never raises on data: what is not above 0 is ignored.
        """
        at, logs = _usable(steps, readings)
        theirs = [each for each in (_usable(*one) for one in others) if len(each[0])]
        weights = _FADING ** np.arange(len(logs))[::-1]
        weight = float(weights.sum())
        if not theirs:
            return cls(float(np.exp((weights * logs).sum() / weight)) if weight else 0.0, len(logs))
        # Theirs tell how it grows, its own how it differs from them.
        usual = np.mean([np.interp(at, *each) for each in theirs], axis=0)
        apart = float((weights * (logs - usual)).sum()) / (weight + _OTHERS_READINGS)
        now = float(at[-1]) if len(at) else 0.0
        return cls(float(np.exp(np.mean([np.interp(now, *each) for each in theirs]) + apart)), len(logs))


def _usable(steps: ArrayLike, readings: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Steps and logarithms of the readings that can be used."""
    at, values = (np.asarray(column, dtype=np.float64).reshape(-1) for column in (steps, readings))
    good = (values > 0) & np.isfinite(at)
    return at[good], np.log(np.clip(values[good], _LEAST, _MOST))
