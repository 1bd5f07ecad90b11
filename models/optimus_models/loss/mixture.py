"""The default shape of a loss curve: power laws above an asymptote, averaged over everything that fits about as well.

A single curve is c + a·(1 + k/(s·K))^-γ with c, a >= 0, where K is the last step seen. For given s and γ it is linear
in (c, a), so a whole grid of s is fitted at once, and the curves are averaged with the weight of their evidence. Few
points are counted as evidence (`evidence`): a young curve that fits perfectly still says little about its far end.

Two such averages are kept. `NEAR` (γ about 1, as in the paper's Eq. 1) describes the next few hundred steps and so
where a rule on the slope will hold. Far beyond the data losses keep falling more slowly but for longer than that, not
least because learning rates are lowered: `FAR` (γ = 1/2) takes over with the logarithm of the horizon.

Where the learning rates η are known, a curve is c + a·((1 + k/(s·K))^-γ - b·(1 - η(k)/η_max)): lowering them takes off
a part of what the steps do. This is the multi-power law (Luo et al., ICLR 2025, arXiv 2503.12811) with one constant.

docs/studies/models.md says how the constants were found and what else was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray, LossBatch
from optimus_models.loss.rate_schedule import RateSchedule


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
_LEAST_LOSS = 1e-12
"""Of what was seen, in units of the largest: a curve that has reached 0 stays there."""
_ANCHOR_SHARE, _LEAST_ANCHOR = 0.09, 2
"""The curve is moved through the mean of this last part of the points (at least so many)."""


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

    def paths(self, position: FloatArray, lowered: FloatArray | float = 0.0) -> FloatArray:
        """(m, n): each curve at `position` (n,), steps in units of the last step seen; `lowered` (n,) is what lower
        rates take off an amplitude of 1. Not below 0."""
        falling = (1.0 + position / self.scales[:, None]) ** -self.exponent
        falling -= lowered
        falling *= self.amplitudes[:, None]
        falling += self.levels[:, None]
        return np.maximum(falling, 0.0, out=falling)

    def above_zero(self, position: FloatArray) -> FloatArray:
        """`paths`, but a curve whose level lies below 0 falls on, beyond the last step, as it does there, in
        logarithms of loss and step.

        By itself it would fall ever faster, through 0. Its level comes of moving the curve; no loss has it.
        """
        below, ahead = (self.levels < 0.0).nonzero()[0], (position > 1.0).nonzero()[0]
        if not len(below) or not len(ahead):
            return self.paths(position)
        last = 1.0 + 1.0 / self.scales[below]
        falling = self.amplitudes[below] * last**-self.exponent
        loss = np.maximum(falling + self.levels[below], _LEAST_LOSS)
        power = self.exponent * falling / (self.scales[below] * last) / loss
        onward = loss[:, None] * np.exp(-power[:, None] * np.log(position[ahead]))
        if onward.shape == (len(self.levels), len(position)):
            return onward
        paths = self.paths(position)
        paths[below[:, None], ahead] = onward
        return paths


class PowerMixture(NamedTuple):
    """The near and the far average of one loss history."""

    near: PowerLaws
    far: PowerLaws
    last_step: float
    noise: float
    """Root mean squared residual of the near average, normalised."""
    weighted_noise: float
    """The same with the weights of the fit, in which first points, where the loss falls most steeply, count little."""
    schedule: RateSchedule | None = None
    """Its learning rates, if they are part of it."""

    def loss_and_decrease(self, steps: FloatArray, distance: float) -> tuple[FloatArray, FloatArray]:
        """Normalised loss at `steps` (n,), and how far it falls from each to `distance` steps later, without its rates.

        Each average falls by itself: where one takes over from the other, the loss between them is no fall. No curve
        reaches 0, before which all that is left would fall in a moment.
        """
        begin, end = (np.maximum(each, 0.0) / self.last_step for each in (steps, steps + distance))
        before, after = ([laws.above_zero(each) for laws in (self.near, self.far)] for each in (begin, end))
        share, weights = _far_share(begin), (self.near.weights, self.far.weights)
        near, far = (weight @ paths for weight, paths in zip(weights, before, strict=True))
        near_fall, far_fall = (weight @ (was - is_) for weight, was, is_ in zip(weights, before, after, strict=True))
        return (1.0 - share) * near + share * far, np.asarray((1.0 - share) * near_fall + share * far_fall)

    def loss_and_spread(self, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Normalised loss at `steps` (n,), and the standard deviation of the averaged curves there, which includes
        how far the near and the far average are apart."""
        position = np.maximum(steps, 0.0) / self.last_step
        share, lowered = _far_share(position), _lowered(steps[None], [self.schedule])[0]
        near, near_variance = _moments(self.near, position, lowered)
        far, far_variance = _moments(self.far, position, lowered)
        mean = (1.0 - share) * near + share * far
        variance = (1.0 - share) * (near_variance + (near - mean) ** 2) + share * (far_variance + (far - mean) ** 2)
        return mean, np.sqrt(variance)


def fit_power_mixtures(batch: LossBatch, schedules: Sequence[RateSchedule | None] | None = None) -> list[PowerMixture]:
    """One mixture for each history of `batch`, with the learning rates of each if there are any."""
    known = schedules if schedules is not None else [None] * len(batch.counts)
    stretched, recent, lowered = _stretched(batch.steps, batch), recent_weights(batch), _lowered(batch.steps, known)
    near, far = (_fit(batch, stretched, recent, lowered, horizon) for horizon in (NEAR, FAR))
    noise = np.sqrt(batch.mean(near.residuals**2))
    weighted = np.sqrt((near.residuals**2 * _point_weights(batch, NEAR)).sum(axis=1))
    columns = (near.laws(NEAR), far.laws(FAR), batch.reach.tolist(), noise.tolist(), weighted.tolist(), known)
    return [PowerMixture(*each) for each in zip(*columns, strict=True)]


def near_losses(batch: LossBatch, steps: FloatArray, schedules: Sequence[RateSchedule | None]) -> FloatArray:
    """(j, p) normalised losses of the near average of each history at its `steps` (j, p)."""
    lowered = _lowered(batch.steps, schedules)
    fitted = _fit(batch, _stretched(batch.steps, batch), recent_weights(batch), lowered, NEAR)
    falling = np.exp(-NEAR.exponent * _stretched(steps, batch)) - _lowered(steps, schedules)[:, None, :]
    paths = np.maximum(fitted.levels[:, :, None] + fitted.amplitudes[:, :, None] * falling, 0.0)
    return np.asarray((fitted.weights[:, None, :] @ paths)[:, 0, :])


def _lowered(steps: FloatArray, schedules: Sequence[RateSchedule | None]) -> FloatArray:
    """(j, n) what lower rates take off an amplitude of 1 at the `steps` (j, n) of each; 0 where none are known."""
    taken = np.zeros(steps.shape)
    for row, schedule in enumerate(schedules):
        if schedule is not None:
            taken[row] = schedule.fall * schedule.lowered(steps[row])
    return taken


class _Fit(NamedTuple):
    """The averaged curves of one horizon, for each history; arrays (j, m) as in `PowerLaws`."""

    weights: FloatArray
    levels: FloatArray
    amplitudes: FloatArray
    residuals: FloatArray
    """(j, n) of their mean."""

    def laws(self, horizon: Horizon) -> list[PowerLaws]:
        return [PowerLaws(*each, _SCALES, horizon.exponent) for each in zip(*self[:3], strict=True)]


def _stretched(steps: FloatArray, batch: LossBatch) -> FloatArray:
    """(j, m, n) log(1 + k / (s·K)) at `steps` k (j, n) of each history, for each trial s."""
    return np.asarray(np.log(1.0 + (steps / batch.reach[:, None])[:, None, :] / _SCALES[:, None]))


def _fit(batch: LossBatch, stretched: FloatArray, recent: FloatArray, lowered: FloatArray, horizon: Horizon) -> _Fit:
    weights = _point_weights(batch, horizon)
    falling = np.exp(-horizon.exponent * stretched) - lowered[:, None, :]  # (j, m, n)
    levels, amplitudes, errors = _nonnegative_fit(falling, batch.losses, weights)
    probability = _posterior(errors, batch.counts, horizon)
    recent_loss = (batch.losses * recent).sum(axis=1, keepdims=True)
    anchored = recent_loss - amplitudes * (falling @ recent[:, :, None])[:, :, 0]
    mean_level = (probability * levels).sum(axis=1, keepdims=True)
    fitted = mean_level + ((probability * amplitudes)[:, None, :] @ falling)[:, 0, :]
    return _Fit(probability, anchored, amplitudes, batch.losses - fitted)


def _point_weights(batch: LossBatch, horizon: Horizon) -> FloatArray:
    """(j, n) how much each point counts in the fit; each row sums to 1."""
    position = batch.steps / batch.reach[:, None]
    weights: FloatArray = np.where(batch.inside, (position + 1e-6) ** horizon.recency, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def recent_weights(batch: LossBatch) -> FloatArray:
    """(j, n) weights that make the mean of the recent points of each history."""
    n_recent = np.minimum(np.maximum(_LEAST_ANCHOR, np.round(_ANCHOR_SHARE * batch.counts)), batch.counts)
    from_end = batch.counts[:, None] - np.arange(batch.losses.shape[1])
    recent: FloatArray = (batch.inside & (from_end <= n_recent[:, None])) / n_recent[:, None]
    return recent


def _nonnegative_fit(
    falling: FloatArray, losses: FloatArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Levels c >= 0 and amplitudes a >= 0 of the least-squares fits of c + a·falling, and the mean squared errors.

    Each (j, m), of `falling` (j, m, n) and `losses` (j, n); the `weights` (j, n) of each row sum to 1.
    """
    weighted = weights * losses
    f, fl = np.moveaxis(falling @ np.stack([weights, weighted], axis=2), 2, 0)
    ff = (np.square(falling) @ weights[:, :, None])[:, :, 0]
    mean, square = weighted.sum(axis=1, keepdims=True), (weighted * losses).sum(axis=1, keepdims=True)
    a = np.maximum((fl - f * mean) / (np.maximum(ff - f**2, 0.0) + 1e-12), 0.0)
    c = mean - a * f
    below = c < 0
    c, a = np.where(below, 0.0, c), np.where(below, np.maximum(fl, 0.0) / np.maximum(ff, 1e-12), a)
    error = square - 2.0 * (c * mean + a * fl) + c**2 + 2.0 * a * c * f + a**2 * ff
    return c, a, np.maximum(error, 0.0)


def _posterior(squared_error: FloatArray, n_points: FloatArray, horizon: Horizon) -> FloatArray:
    """(j, m) probability of each scale: Gaussian residuals of unknown size, log-normal prior."""
    floor = 1e-10  # a perfect fit must not make all others impossible
    ratio = (squared_error + floor) / (squared_error.min(axis=1, keepdims=True) + floor)
    distance = (np.log(_SCALES) - horizon.log_scale) / horizon.log_scale_spread
    evidence = np.minimum(n_points, horizon.evidence)[:, None]
    exponent = -0.5 * (evidence * np.log(ratio) + distance**2)
    probability = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.asarray(probability / probability.sum(axis=1, keepdims=True))


def _far_share(position: FloatArray) -> FloatArray:
    progress = np.log(np.maximum(position, 1.0) / _FAR_BEGINS) / np.log(_FAR_RULES / _FAR_BEGINS)
    share: FloatArray = _FAR_SHARE * np.clip(progress, 0.0, 1.0)
    return share


def _moments(laws: PowerLaws, position: FloatArray, lowered: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance (n,) over the curves."""
    paths = laws.paths(position, lowered)
    mean: FloatArray = laws.weights @ paths
    variance: FloatArray = laws.weights @ (paths - mean) ** 2
    return mean, variance
