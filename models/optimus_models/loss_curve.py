"""The loss curve of one training job: what its loss will be at a later step, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray, LossHistory, replace_outliers
from optimus_models.inverse_law import InverseLaw, Profile, fit_profile
from optimus_models.quantiles import weighted_quantiles

Option = Literal["ours", "paper"]

_EVIDENCE_POINTS = 30.0
"""At most so many points count as independent evidence between curves: neighbouring losses are correlated."""
_LEAST_WEIGHT = 1e-3
"""Curves less likely than this are dropped: they only cost time."""
_RECENCY = 3.0
"""How much more the newest point weighs than the oldest (`ours`): the future resembles the recent past."""
_SURE_POINTS = 8.0
"""Points after which the mere number of points no longer holds confidence down by more than half."""


@dataclass(frozen=True, slots=True, eq=False)
class LossCurve:
    """l(k) = 1/(β0·k + β1) + β2 (paper, Eq. 1) fitted to a loss history, with the curves that are nearly as likely.

    `beta0`, `beta1`, `beta2` describe the best fit to loss / `scale`, where `scale` is the largest |loss| so far.
    A loss that goes below zero is moved up by `-offset` before anything else (0 for ordinary losses).
    A fitted curve always exists; with nothing to go by `n_points` is 0, `confidence` 0 and predictions are NaN.
    """

    option: Option
    beta0: float
    beta1: float
    beta2: float
    scale: float
    """In units of the loss, above 0."""
    offset: float
    """In units of the loss, 0 or below."""
    confidence: float
    """0 (nothing known) to 1."""
    n_points: int
    """Finite losses that the fit rests on, before down-sampling."""
    first_step: float
    last_step: float
    """The newest step reported; predictions beyond it are extrapolation."""
    residual: float
    """Root mean squared residual of the best fit, as a fraction of `scale`."""
    laws: InverseLaw = field(repr=False)
    """(m,) plausible curves, normalised."""
    law_weights: FloatArray = field(repr=False)
    """(m,) their probabilities, summing to 1."""

    @classmethod
    def fit(
        cls,
        steps: ArrayLike,
        losses: ArrayLike,
        learning_rates: ArrayLike | None = None,
        *,
        option: Option = "ours",
    ) -> LossCurve:
        """Fit to parallel arrays of steps and losses (any order, NaN and infinities allowed). Never raises on data.

        `option="paper"` is the paper's method: outliers replaced, loss normalised, points down-sampled, all points
        equal. `learning_rates` (one per point) may be given where they are known.
        """
        history = LossHistory.of(steps, losses, learning_rates)
        if not len(history):
            return _unknown(option, history)
        offset = _offset(history.losses)
        scale = max(history.largest - offset, 1e-12)
        normalised = (replace_outliers(history.losses) - offset) / scale
        profile = fit_profile(np.maximum(history.steps, 0.0), normalised, _point_weights(len(history), option))
        return _from_profile(option, history, normalised, scale, offset, profile)

    def predict(self, steps: ArrayLike) -> FloatArray:
        """Expected loss at each of `steps`, in units of the loss; NaN when nothing is known."""
        paths = self.paths(np.asarray(steps, dtype=np.float64).reshape(-1))
        if self.option == "paper":
            return np.asarray(paths[int(np.argmax(self.law_weights))])
        mean: FloatArray = self.law_weights @ paths
        return mean

    def predict_interval(self, steps: ArrayLike, coverage: float = 0.8) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high), each shaped like `steps`, that hold the smoothed loss with probability `coverage`."""
        k = np.asarray(steps, dtype=np.float64).reshape(-1)
        tail = (1.0 - coverage) / 2.0
        low, high = weighted_quantiles(self.paths(k), self.law_weights, (tail, 1.0 - tail))
        margin = self.scale * self.residual * np.sqrt(self._ahead(k))
        mean = self.predict(k)
        return np.minimum(low, mean) - margin, np.maximum(high, mean) + margin

    def paths(self, steps: FloatArray) -> FloatArray:
        """(m, n): what each plausible curve says at `steps` (n,), in units of the loss."""
        return self.laws.loss(np.maximum(steps, 0.0)) * self.scale + self.offset

    def _ahead(self, steps: FloatArray) -> FloatArray:
        """How far beyond the data: 1 within it, growing with the ratio of steps."""
        return np.maximum(steps / max(self.last_step, 1.0), 1.0)


def _offset(losses: FloatArray) -> float:
    """What makes room for Eq. 1, which cannot go below 0, under losses that do: as much again as they have fallen."""
    smallest = float(losses.min())
    return 0.0 if smallest >= 0 else 2.0 * smallest - float(losses.max())


def _point_weights(n: int, option: Option) -> FloatArray:
    return np.ones(n) if option == "paper" else np.linspace(1.0, _RECENCY, n)


def _unknown(option: Option, history: LossHistory) -> LossCurve:
    nothing = np.array([np.nan])
    laws = InverseLaw(np.zeros(1), np.ones(1), nothing)
    return LossCurve(
        option, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, history.last_step, history.last_step, 0.0, laws, np.ones(1)
    )


def _from_profile(
    option: Option, history: LossHistory, normalised: FloatArray, scale: float, offset: float, profile: Profile
) -> LossCurve:
    weights = _likelihood(profile.squared_error, len(history))
    keep = weights >= _LEAST_WEIGHT * weights.max()
    laws = InverseLaw(*(beta[keep] for beta in profile.laws))
    best = profile.best
    b0, b1, b2 = (float(beta[best]) for beta in profile.laws)
    residual = float(np.sqrt(profile.squared_error[best]))
    return LossCurve(
        option=option,
        beta0=b0,
        beta1=b1,
        beta2=b2,
        scale=scale,
        offset=offset,
        confidence=_confidence(history, normalised, residual, b0),
        n_points=history.n_points,
        first_step=float(history.steps[0]),
        last_step=history.last_step,
        residual=residual,
        laws=laws,
        law_weights=weights[keep] / weights[keep].sum(),
    )


def _likelihood(squared_error: FloatArray, n_points: int) -> FloatArray:
    """Relative probability of each curve if residuals were Gaussian with the best curve's variance unknown."""
    floor = 1e-12  # a perfect fit must not make all others impossible
    evidence = min(float(n_points), _EVIDENCE_POINTS) / 2.0
    ratio = (squared_error + floor) / (squared_error.min() + floor)
    return np.asarray(ratio**-evidence)


def _confidence(history: LossHistory, normalised: FloatArray, residual: float, beta0: float) -> float:
    """High for many points that lie close to a falling curve; 0 for a run that has just diverged."""
    if not history.ends_finite:
        return 0.0
    by_count = 1.0 - 2.0 ** -((history.n_points - 1) / _SURE_POINTS)
    spread = float(normalised.max() - normalised.min())
    by_fit = 1.0 - min(1.0, 2.0 * residual / spread) if spread > 0 else 0.5
    falling = 1.0 if beta0 > 0 else 0.2  # Eq. 1 cannot say when a curve that does not fall will be done
    return float(np.clip(by_count * by_fit * falling, 0.0, 1.0))
