"""When a job will be done: the convergence rule applied to its fitted loss curve.

Everything is evaluated on the fitted curve: on raw losses the noise of single epochs fires the rule almost at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from optimus_models.history import FloatArray
from optimus_models.inverse_law import step_of_loss, step_of_small_decrease
from optimus_models.loss_curve import LossCurve
from optimus_models.quantiles import weighted_quantiles

HORIZON = 50.0
"""A curve says nothing about more than so many times the steps it was fitted to: bounds are cut off there."""
LEAST_POINTS = 5
"""With fewer losses than this a loss-decrease rule neither fires nor is predicted."""


class ConvergenceRule(Protocol):
    """When a job is done, whichever holds first; None switches a condition off.

    `Rule` below and the scheduler's own rule value both have these fields.
    """

    @property
    def loss_decrease(self) -> float | None: ...
    @property
    def relative(self) -> bool: ...
    @property
    def patience_epochs(self) -> int: ...
    @property
    def target_loss(self) -> float | None: ...
    @property
    def max_steps(self) -> int | None: ...
    @property
    def max_epochs(self) -> float | None: ...
    @property
    def max_seconds(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A plain `ConvergenceRule`.

    `loss_decrease`: the loss falls by less than this from one epoch to the next, `patience_epochs` times in a row;
    as a fraction of the loss of the epoch before when `relative`, otherwise of the largest loss of the run.
    """

    loss_decrease: float | None = None
    relative: bool = True
    patience_epochs: int = 3
    target_loss: float | None = None
    max_steps: int | None = None
    max_epochs: float | None = None
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Total steps after which the rule will hold: `low <= mean <= high`, an 80 % interval unless asked otherwise."""

    mean: float
    low: float
    high: float
    rule: str
    """The field of the rule that is expected to hold first."""


def convergence_step(
    curve: LossCurve,
    rule: ConvergenceRule,
    *,
    steps_per_epoch: float | None,
    now_step: float,
    elapsed_seconds: float = 0.0,
    steps_per_second: float | None = None,
    coverage: float = 0.8,
) -> Prediction | None:
    """Predict the total number of steps of the job; None when nothing can be said.

    `steps_per_epoch` is needed by the rules that speak of epochs, `steps_per_second` (present speed) and
    `elapsed_seconds` by `max_seconds`; a condition whose inputs are missing is left out. Never below `now_step`.
    """
    limit, limit_name = _fixed_limit(rule, steps_per_epoch, now_step, elapsed_seconds, steps_per_second)
    per_law, names = _by_loss(curve, rule, steps_per_epoch)
    totals = np.maximum(np.minimum(per_law.min(axis=0), limit), now_step)  # (m,) one per plausible curve
    tail = (1.0 - coverage) / 2.0
    low, mean, high = (
        float(q[0]) for q in weighted_quantiles(totals[:, None], curve.law_weights, (tail, 0.5, 1 - tail))
    )
    if not np.isfinite(mean):
        return None
    horizon = max(HORIZON * max(now_step, curve.last_step, 1.0), mean)
    name = limit_name if mean >= limit and limit_name else names[_first(per_law, curve.law_weights)]
    return Prediction(mean=mean, low=min(low, mean), high=min(max(high, mean), horizon, max(limit, mean)), rule=name)


def has_converged(
    curve: LossCurve,
    rule: ConvergenceRule,
    *,
    steps_per_epoch: float | None,
    now_step: float,
    elapsed_seconds: float = 0.0,
) -> str | None:
    """The field of the rule that holds on the fitted curve at `now_step`, or None."""
    epoch = steps_per_epoch if steps_per_epoch and steps_per_epoch > 0 else None
    if rule.max_steps is not None and now_step >= rule.max_steps:
        return "max_steps"
    if rule.max_epochs is not None and epoch and now_step >= rule.max_epochs * epoch - 1e-9:
        return "max_epochs"
    if rule.max_seconds is not None and elapsed_seconds >= rule.max_seconds:
        return "max_seconds"
    if not curve.n_points:
        return None
    if rule.target_loss is not None and float(curve.predict([now_step])[0]) <= rule.target_loss:
        return "target_loss"
    if rule.loss_decrease is not None and epoch and _stays_small(curve, rule, rule.loss_decrease, epoch, now_step):
        return "loss_decrease"
    return None


def _stays_small(curve: LossCurve, rule: ConvergenceRule, delta: float, epoch: float, now_step: float) -> bool:
    """Whether the fitted loss fell by less than `delta` in each of the last `patience_epochs` epochs."""
    patience = max(rule.patience_epochs, 1)
    first = now_step - patience * epoch
    seen_before = first - curve.first_step >= -1e-9 and first >= epoch  # one epoch to start from, at least
    if not seen_before or curve.n_points < LEAST_POINTS:
        return False
    losses = curve.predict(now_step - epoch * np.arange(patience, -1, -1))  # (patience + 1,) oldest first
    reference = np.abs(losses[:-1]) if rule.relative else curve.scale
    return bool(np.all(losses[:-1] - losses[1:] < delta * reference))


def _fixed_limit(
    rule: ConvergenceRule,
    steps_per_epoch: float | None,
    now_step: float,
    elapsed_seconds: float,
    steps_per_second: float | None,
) -> tuple[float, str | None]:
    """The step at which a limit that does not depend on the loss ends the job, and its name; (inf, None) if none."""
    limits: list[tuple[float, str]] = []
    if rule.max_steps is not None:
        limits.append((float(rule.max_steps), "max_steps"))
    if rule.max_epochs is not None and steps_per_epoch and steps_per_epoch > 0:
        limits.append((rule.max_epochs * steps_per_epoch, "max_epochs"))
    if rule.max_seconds is not None and steps_per_second and steps_per_second > 0:
        left = max(rule.max_seconds - elapsed_seconds, 0.0)
        limits.append((now_step + left * steps_per_second, "max_seconds"))
    return min(limits, default=(np.inf, None))


def _by_loss(
    curve: LossCurve, rule: ConvergenceRule, steps_per_epoch: float | None
) -> tuple[FloatArray, tuple[str, str]]:
    """(2, m): the step at which each plausible curve meets the decrease rule and the target; inf where never."""
    totals = np.full((2, len(curve.law_weights)), np.inf)
    names = ("loss_decrease", "target_loss")
    if not curve.n_points:
        return totals, names
    if rule.loss_decrease is not None and steps_per_epoch and steps_per_epoch > 0 and curve.n_points >= LEAST_POINTS:
        totals[0] = _decrease_steps(curve, rule, rule.loss_decrease, steps_per_epoch)
    if rule.target_loss is not None:
        totals[1] = step_of_loss(curve.laws, (rule.target_loss - curve.offset) / curve.scale)
    return totals, names


def _decrease_steps(curve: LossCurve, rule: ConvergenceRule, delta: float, epoch: float) -> FloatArray:
    delta = min(max(delta, 1e-12), 1.0)
    begins = step_of_small_decrease(curve.laws, delta, epoch, relative=rule.relative)
    begins = np.maximum(begins, epoch)  # a first epoch has to be seen before anything can be compared with it
    return begins + max(rule.patience_epochs, 1) * epoch


def _first(per_law: FloatArray, weights: FloatArray) -> int:
    """Which of the rows comes first on most of the plausible curves."""
    votes = np.bincount(np.argmin(per_law, axis=0), weights=weights, minlength=len(per_law))
    return int(np.argmax(votes))
