"""The default shape of a loss curve: power laws above an asymptote, averaged over everything that fits about as well.

A single curve is c + a·(1 + k/(s·K))^-γ with c, a >= 0, where K is the last step seen. For given s and γ it is linear
in (c, a), so a whole grid of s is fitted at once, and the curves are averaged with the weight of their evidence. Few
points are counted as evidence (`evidence`): a young curve that fits perfectly still says little about its far end.

Two such averages are kept. `NEAR` (γ about 1, as in the paper's Eq. 1) describes the next few hundred steps and so
where a rule on the slope will hold. Far beyond the data losses keep falling more slowly but for longer than that, not
least because learning rates are lowered: `FAR` (γ = 1/2) takes over with the logarithm of the horizon.

docs/models.md tells how the constants were found and what else was tried.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray


class Horizon(NamedTuple):
    """How one average over power laws is made."""

    exponent: float
    """γ."""
    recency: float
    """Points weigh as step to this power: the future resembles the recent past."""
    evidence: float
    """At most so many points count as independent evidence for one s over another."""
    log_scale: float
    """Centre of the prior of log s ..."""
    log_scale_spread: float
    """... and its standard deviation."""


NEAR = Horizon(exponent=0.9, recency=1.25, evidence=12.0, log_scale=-1.0, log_scale_spread=1.9)
FAR = Horizon(exponent=0.53, recency=1.75, evidence=4.0, log_scale=-2.4, log_scale_spread=6.0)

_SCALES = np.geomspace(0.01, 30.0, 14)
"""Trial s: from `has long levelled off` to `still nearly straight`."""
_FAR_BEGINS, _FAR_RULES = 1.8, 4.4
"""Multiples of the last step between which `FAR` fades in."""
_FAR_SHARE = 0.9
"""Weight of `FAR` at the end of that range."""
_ANCHOR_SHARE, _LEAST_ANCHOR = 0.09, 2
"""The curve is moved through the mean of this last part of the points (at least so many)."""
_LEAST_WEIGHT = 1e-3
"""Curves with less weight than this (relative to the best) only cost time."""


class PowerLaws(NamedTuple):
    """An average of m power laws in normalised loss; arrays (m,)."""

    weights: FloatArray
    """Probabilities, summing to 1."""
    levels: FloatArray
    """c, moved through the recent mean."""
    amplitudes: FloatArray
    """a."""
    scales: FloatArray
    """s."""
    exponent: float

    def paths(self, position: FloatArray) -> FloatArray:
        """(m, n): each curve at `position` (n,), steps in units of the last step seen. Not below 0."""
        falling = (1.0 + position / self.scales[:, None]) ** -self.exponent
        return np.maximum(self.levels[:, None] + self.amplitudes[:, None] * falling, 0.0)


class PowerMixture(NamedTuple):
    """The near and the far average of one loss history."""

    near: PowerLaws
    far: PowerLaws
    last_step: float
    noise: float
    """Root mean squared residual of the near average, normalised."""

    def loss(self, steps: FloatArray) -> FloatArray:
        """Normalised loss at `steps` (n,)."""
        mean, _ = self.loss_and_spread(steps)
        return mean

    def loss_and_spread(self, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Normalised loss at `steps` (n,), and the standard deviation of the averaged curves there, which includes
        how far the near and the far average are apart."""
        position = np.maximum(steps, 0.0) / self.last_step
        share = _far_share(position)
        near, near_variance = _moments(self.near, position)
        far, far_variance = _moments(self.far, position)
        mean = (1.0 - share) * near + share * far
        variance = (1.0 - share) * (near_variance + (near - mean) ** 2) + share * (far_variance + (far - mean) ** 2)
        return mean, np.sqrt(variance)


def fit_power_mixture(steps: FloatArray, losses: FloatArray) -> PowerMixture:
    """Fit to `steps` (n,) >= 0 in increasing order and normalised `losses` (n,) >= 0, n >= 1."""
    last_step = float(steps[-1]) if steps[-1] > 0 else 1.0
    position = steps / last_step
    near, residual = _fit(position, losses, NEAR)
    far, _ = _fit(position, losses, FAR)
    return PowerMixture(near, far, last_step, float(np.sqrt(np.mean(residual**2))))


def _fit(position: FloatArray, losses: FloatArray, horizon: Horizon) -> tuple[PowerLaws, FloatArray]:
    """The averaged curves of one horizon and the residuals (n,) of their mean."""
    weights = (position + 1e-6) ** horizon.recency
    weights /= weights.sum()
    falling = (1.0 + position / _SCALES[:, None]) ** -horizon.exponent  # (m, n)
    levels, amplitudes = _nonnegative_fit(falling, losses, weights)
    residuals = losses - levels[:, None] - amplitudes[:, None] * falling  # (m, n)
    probability = _posterior(residuals**2 @ weights, len(losses), horizon)
    n_recent = max(_LEAST_ANCHOR, round(_ANCHOR_SHARE * len(losses)))
    anchored = levels + residuals[:, -n_recent:].mean(axis=1)
    keep = probability >= _LEAST_WEIGHT * probability.max()
    kept = probability[keep] / probability[keep].sum()
    laws = PowerLaws(kept, anchored[keep], amplitudes[keep], _SCALES[keep], horizon.exponent)
    return laws, kept @ residuals[keep]


def _nonnegative_fit(falling: FloatArray, losses: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Levels c >= 0 and amplitudes a >= 0, each (m,), of the weighted least-squares fits c + a·falling."""
    mean_shape, mean_loss = falling @ weights, float(losses @ weights)
    shape = falling - mean_shape[:, None]
    variance = shape**2 @ weights
    amplitudes = np.maximum(shape @ (weights * (losses - mean_loss)) / (variance + 1e-12), 0.0)
    levels = mean_loss - amplitudes * mean_shape
    from_zero = falling @ (weights * losses) / (falling**2 @ weights)
    below = levels < 0
    return np.where(below, 0.0, levels), np.where(below, from_zero, amplitudes)


def _posterior(squared_error: FloatArray, n_points: int, horizon: Horizon) -> FloatArray:
    """Relative probability of each scale: Gaussian residuals of unknown size, log-normal prior."""
    floor = 1e-10  # a perfect fit must not make all others impossible
    ratio = (squared_error + floor) / (squared_error.min() + floor)
    distance = (np.log(_SCALES) - horizon.log_scale) / horizon.log_scale_spread
    exponent = -0.5 * (min(n_points, horizon.evidence) * np.log(ratio) + distance**2)
    probability: FloatArray = np.exp(exponent - exponent.max())
    return probability


def _far_share(position: FloatArray) -> FloatArray:
    progress = np.log(np.maximum(position, 1.0) / _FAR_BEGINS) / np.log(_FAR_RULES / _FAR_BEGINS)
    share: FloatArray = _FAR_SHARE * np.clip(progress, 0.0, 1.0)
    return share


def _moments(laws: PowerLaws, position: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance (n,) over the curves."""
    paths = laws.paths(position)
    mean: FloatArray = laws.weights @ paths
    variance: FloatArray = laws.weights @ (paths - mean) ** 2
    return mean, variance
