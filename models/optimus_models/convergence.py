"""When a job will be done: the convergence rule applied to its fitted loss curve.

Everything is evaluated on the fitted curve: on raw losses the noise of single epochs fires the rule almost at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import BoolArray, FloatArray
from optimus_models.loss.curve import LossCurve, MetricCurve

HORIZON = 50.0
"""A curve says nothing about more than so many times the steps it was fitted to: beyond it, there is no prediction."""
LEAST_POINTS = 5
"""With fewer losses than this a loss-decrease rule neither fires nor is predicted."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a job is done: the first of these conditions to hold; None switches a condition off.

    `loss_decrease`: the loss falls by less than this from one epoch to the next, `patience_epochs` times in a row;
    as a fraction of the loss of the epoch before when `relative`, otherwise of the largest loss of the run.
    `target_metric` is about the job's metric, `max_cost` is in the unit of the prices.
    """

    loss_decrease: float | None = None
    relative: bool = True
    patience_epochs: int = 3
    target_loss: float | None = None
    max_steps: int | None = None
    max_epochs: float | None = None
    max_seconds: float | None = None
    target_metric: float | None = None
    max_cost: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Total steps after which the rule will hold: `low <= mean <= high`, an 80 % interval unless asked otherwise."""

    mean: float
    low: float
    high: float
    rule: str
    """The field of the rule that is expected to hold first."""


class _Progress(NamedTuple):
    """What a job has used so far and how fast it goes on."""

    elapsed_seconds: float
    steps_per_second: float | None
    spent: float
    cost_per_second: float | None

    def steps_in(self, seconds: float) -> float:
        """Steps in so many seconds, none if that is past; inf if the speed is not known."""
        if self.steps_per_second is None or self.steps_per_second <= 0:
            return math.inf
        return max(seconds, 0.0) * self.steps_per_second


class _End(NamedTuple):
    """One way for the job to end."""

    step: float
    rule: str


def convergence_step(
    curve: LossCurve,
    rule: Rule,
    *,
    steps_per_epoch: float | None,
    now_step: float,
    elapsed_seconds: float = 0.0,
    steps_per_second: float | None = None,
    spent: float = 0.0,
    cost_per_second: float | None = None,
    metric: MetricCurve | None = None,
    coverage: float = 0.8,
) -> Prediction | None:
    """Predict the total number of steps of the job; None when nothing can be said.

    `steps_per_epoch` is needed by the rules that speak of epochs, `steps_per_second` (present speed) and
    `elapsed_seconds` by `max_seconds`, those and `spent` and `cost_per_second` (of the present allocation) by
    `max_cost`, `metric` by `target_metric`; a condition whose inputs are missing is left out. Never below `now_step`.

    The rule is predicted as `has_converged` judges it, on the fitted curve: noise of the losses plays no part.
    """
    progress = _Progress(elapsed_seconds, steps_per_second, spent, cost_per_second)
    limit = min(_limits(rule, steps_per_epoch, now_step, progress), default=None)
    by_loss = min(_curve_ends(curve, rule, steps_per_epoch, now_step, metric), default=None)
    latest = max(limit.step, now_step) if limit else math.inf
    if by_loss is None:
        return Prediction(latest, latest, latest, limit.rule) if limit else None
    expected = max(by_loss.step, now_step)
    low, high = _bounds(expected, now_step, coverage, _DECREASE if by_loss.rule == "loss_decrease" else _TARGET)
    name = by_loss.rule if expected <= latest or limit is None else limit.rule
    return Prediction(min(expected, latest), min(low, latest), min(high, latest), name)


def has_converged(
    curve: LossCurve,
    rule: Rule,
    *,
    steps_per_epoch: float | None,
    now_step: float,
    elapsed_seconds: float = 0.0,
    spent: float = 0.0,
    metric: MetricCurve | None = None,
    least_points: int = LEAST_POINTS,
) -> str | None:
    """The field of the rule that holds at `now_step`, or None; limits that are not about steps come first.

    The loss is judged on the fitted curve, which noise hardly moves, and not before there is something to fit: neither
    in the first epoch nor on fewer than `least_points` losses nor on a run that has just diverged.
    """
    epoch = _epoch_steps(steps_per_epoch)
    if rule.max_seconds is not None and elapsed_seconds >= rule.max_seconds:
        return "max_seconds"
    if rule.max_cost is not None and spent >= rule.max_cost:
        return "max_cost"
    if rule.target_metric is not None and metric is not None and metric.has_reached(rule.target_metric):
        return "target_metric"
    if rule.max_steps is not None and now_step >= rule.max_steps:
        return "max_steps"
    if rule.max_epochs is not None and epoch and now_step >= rule.max_epochs * epoch - 1e-9:
        return "max_epochs"
    if curve.n_points < least_points or curve.confidence == 0.0 or (epoch and now_step < epoch):
        return None
    if rule.target_loss is not None and float(curve.predict([now_step])[0]) <= rule.target_loss:
        return "target_loss"
    if rule.loss_decrease is not None and epoch and _stays_small(curve, rule, rule.loss_decrease, epoch, now_step):
        return "loss_decrease"
    return None


def converged_epoch(losses: ArrayLike, rule: Rule) -> int | None:
    """The first epoch at whose end the decrease rule holds, by the true losses at the ends of epochs 0, 1, ...

    None if it holds at none of them, or the rule has no `loss_decrease`.
    """
    at_end = np.asarray(losses, dtype=np.float64)
    if rule.loss_decrease is None or not len(at_end):
        return None
    little = _is_little(at_end[:-1], at_end[1:], rule, rule.loss_decrease, float(np.max(np.abs(at_end))))
    patience = max(rule.patience_epochs, 1)
    held = np.convolve(little, np.ones(patience), "valid") >= patience if len(little) >= patience else little[:0]
    return int(np.argmax(held)) + patience if held.any() else None


def _epoch_steps(steps_per_epoch: float | None) -> float | None:
    return steps_per_epoch if steps_per_epoch and 0 < steps_per_epoch < math.inf else None


def _stays_small(curve: LossCurve, rule: Rule, delta: float, epoch: float, now_step: float) -> bool:
    """Whether the fitted loss fell by less than `delta` in each of the last `patience_epochs` epochs."""
    patience = max(rule.patience_epochs, 1)
    first = now_step - patience * epoch
    seen_before = first - curve.first_step >= -1e-9 and first >= epoch  # one epoch to start from, at least
    if not seen_before or curve.n_points < LEAST_POINTS:
        return False
    return bool(_decreases_stay_small(curve, rule, delta, epoch, np.array([first]))[0])


def _decreases_stay_small(curve: LossCurve, rule: Rule, delta: float, epoch: float, starts: FloatArray) -> BoolArray:
    """(n,) whether the fitted loss falls by less than `delta` in each of the `patience_epochs` after `starts` (n,)."""
    begins = (starts[:, None] + epoch * np.arange(max(rule.patience_epochs, 1), dtype=np.float64)).reshape(-1)
    little = _is_little(curve.predict(begins), curve.predict(begins + epoch), rule, delta, curve.scale)
    return np.asarray(little.reshape(len(starts), -1).all(axis=1))


def _is_little(before: FloatArray, after: FloatArray, rule: Rule, delta: float, largest: float) -> BoolArray:
    """Whether losses fall by less than `delta` from `before` to `after`, one epoch later."""
    little: BoolArray = before - after < delta * (np.abs(before) if rule.relative else largest)
    return little


def _limits(rule: Rule, steps_per_epoch: float | None, now_step: float, progress: _Progress) -> list[_End]:
    """The ends that do not depend on the loss."""
    epoch = _epoch_steps(steps_per_epoch)
    limits = []
    if rule.max_steps is not None:
        limits.append(_End(float(rule.max_steps), "max_steps"))
    if rule.max_epochs is not None and epoch:
        limits.append(_End(rule.max_epochs * epoch, "max_epochs"))
    if rule.max_seconds is not None:
        left = progress.steps_in(rule.max_seconds - progress.elapsed_seconds)
        limits.append(_End(now_step + left, "max_seconds"))
    if rule.max_cost is not None and progress.cost_per_second:
        left = progress.steps_in((rule.max_cost - progress.spent) / progress.cost_per_second)
        limits.append(_End(now_step + left, "max_cost"))
    return [limit for limit in limits if limit.step < math.inf]


def _curve_ends(
    curve: LossCurve, rule: Rule, steps_per_epoch: float | None, now_step: float, metric: MetricCurve | None
) -> list[_End]:
    """The ends that the loss and the metric decide, as far as they lie within the horizon."""
    epoch, horizon = _epoch_steps(steps_per_epoch), HORIZON * max(now_step, curve.last_step, 1.0)
    ends = []
    if rule.target_metric is not None and metric is not None and metric.n_points:
        shortfall = metric.shortfall_at(rule.target_metric)
        ends.append(_End(_target_step(metric.shortfall, shortfall, now_step, horizon), "target_metric"))
    if rule.target_loss is not None and curve.n_points:
        ends.append(_End(_target_step(curve, rule.target_loss, now_step, horizon), "target_loss"))
    if rule.loss_decrease is not None and epoch and curve.n_points >= LEAST_POINTS:
        begins = _decrease_step(curve, rule, rule.loss_decrease, epoch, now_step, horizon)
        ends.append(_End(begins + max(rule.patience_epochs, 1) * epoch, "loss_decrease"))
    return [end for end in ends if end.step <= horizon]


def _target_step(curve: LossCurve, target: float, now_step: float, horizon: float) -> float:
    step = curve.step_of_target(target)
    return step if step is not None else _first_step(lambda steps: curve.predict(steps) <= target, now_step, horizon)


def _decrease_step(curve: LossCurve, rule: Rule, delta: float, epoch: float, now_step: float, horizon: float) -> float:
    """First step after which the loss falls by less than `delta` in each of the `patience_epochs`.

    Not before the end of the first epoch: it has to be seen before anything can be compared with it.
    """
    delta = min(max(delta, 1e-12), 1.0)
    step = curve.step_of_decrease(delta, epoch, relative=rule.relative)
    if step is not None:
        return max(step, epoch)
    earliest = max(now_step - max(rule.patience_epochs, 1) * epoch, epoch)
    return _first_step(lambda starts: _decreases_stay_small(curve, rule, delta, epoch, starts), earliest, horizon)


# --- where a condition begins to hold, and how wrong that is ---------------------------------------------------------

_SEARCH_POINTS = 128
"""Steps at which a curve without closed forms is looked at; again as often round the first hit, twice."""


def _first_step(holds: Callable[[FloatArray], BoolArray], earliest: float, horizon: float) -> float:
    """The first step from `earliest` to `horizon` at which `holds`, to about 0.1 % of the way; inf if there is none."""
    if earliest > horizon:
        return math.inf
    offsets = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, _SEARCH_POINTS)])
    steps = earliest + (horizon - earliest) * offsets
    for _ in range(2):
        hits = holds(steps)
        first = int(np.argmax(hits))
        if not hits[first]:
            return math.inf
        if first == 0:
            return float(steps[0])
        steps = np.linspace(steps[first - 1], steps[first], _SEARCH_POINTS)
    return float(steps[np.argmax(holds(steps))])


class _EndErrors(NamedTuple):
    """80 % bounds of log(true / predicted total steps), as functions of a = log(predicted / present step)."""

    down: float
    """Below: minus this share of a."""
    up: float
    """Above: this ..."""
    up_per_ahead: float
    """... plus this share of a ..."""
    least_up: float
    """... but at least so much."""


_DECREASE = _EndErrors(down=0.4, up=0.1, up_per_ahead=0.15, least_up=0.1)
"""A rule about the decrease of the loss: `has_converged` looks at fits like the one that predicts. A quantile
regression; docs/models.md."""
_TARGET = _EndErrors(down=0.53, up=0.45, up_per_ahead=-0.06, least_up=0.2)
"""A target of the loss or of a metric: taken from measured ends of an earlier version, no data to fit it to."""


def _bounds(expected: float, now_step: float, coverage: float, errors: _EndErrors) -> tuple[float, float]:
    """Lowest and highest total number of steps. Errors are multiplicative."""
    ahead = math.log(expected / max(now_step, 1.0)) if expected > max(now_step, 1.0) else 0.0
    width = NormalDist().inv_cdf(0.5 + coverage / 2.0) / NormalDist().inv_cdf(0.9)
    up = max(errors.up + errors.up_per_ahead * ahead, errors.least_up)
    return max(expected * math.exp(-width * errors.down * ahead), now_step), expected * math.exp(width * up)
