"""When a job will be done: the convergence rule applied to its fitted loss curve.

Everything is evaluated on the fitted curve: on raw losses the noise of single epochs fires the rule almost at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from optimus_models.end.errors import bounds, end_errors
from optimus_models.end.first_step import first_step
from optimus_models.history import FloatArray
from optimus_models.loss.batch import BoolArray
from optimus_models.loss.curve import LossCurve
from optimus_models.loss.metric import MetricCurve

HORIZON = 50.0
"""A curve says nothing about more than so many times the steps it was fitted to: beyond it, there is no prediction."""
LEAST_POINTS = 5
"""With fewer losses than this a loss-decrease rule neither fires nor is predicted."""

_NOT_BEFORE = 1.125
"""A run whose measured losses do not hold the rule yet seldom ends within the next eighth of its steps; measured."""


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
    `target_metric` is reached on the curve of the job's metric, `max_cost` is in the unit of the prices.
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


class _Search(NamedTuple):
    """Where an end is looked for."""

    now_step: float
    horizon: float
    measured: bool
    """Whether the rule is to hold on measured losses rather than on the fitted curve."""


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
    rule: ConvergenceRule,
    *,
    steps_per_epoch: float | None,
    now_step: float,
    elapsed_seconds: float = 0.0,
    steps_per_second: float | None = None,
    spent: float = 0.0,
    cost_per_second: float | None = None,
    metric: MetricCurve | None = None,
    coverage: float = 0.8,
    measured: bool = False,
) -> Prediction | None:
    """Predict the total number of steps of the job; None when nothing can be said.

    `steps_per_epoch` is needed by the rules that speak of epochs, `steps_per_second` (present speed) and
    `elapsed_seconds` by `max_seconds`, those and `spent` and `cost_per_second` (of the present allocation) by
    `max_cost`, `metric` by `target_metric`; a condition whose inputs are missing is left out. Never below `now_step`.

    A decrease rule is predicted as `has_converged` judges it, on the fitted curve, or with `measured` as somebody does
    who looks at the losses, averaged over an epoch: noise lets it hold while the curve still falls by more.
    """
    progress = _Progress(elapsed_seconds, steps_per_second, spent, cost_per_second)
    limit = min(_limits(rule, steps_per_epoch, now_step, progress), default=None)
    search = _Search(now_step, HORIZON * max(now_step, curve.last_step, 1.0), measured)
    by_loss = min(_curve_ends(curve, rule, steps_per_epoch, search, metric), default=None)
    latest = max(limit.step, now_step) if limit else math.inf
    if by_loss is None:
        return Prediction(latest, latest, latest, limit.rule) if limit else None
    expected = max(by_loss.step, now_step)
    by_decrease = by_loss.rule == "loss_decrease"
    errors = end_errors(by_decrease=by_decrease, measured=measured, with_runs=curve.experts is not None)
    low, high = bounds(expected, now_step, coverage, errors)
    name = by_loss.rule if expected <= latest or limit is None else limit.rule
    return Prediction(min(expected, latest), min(low, latest), min(high, latest), name)


def has_converged(
    curve: LossCurve,
    rule: ConvergenceRule,
    *,
    steps_per_epoch: float | None,
    now_step: float,
    elapsed_seconds: float = 0.0,
    spent: float = 0.0,
    metric: MetricCurve | None = None,
) -> str | None:
    """The field of the rule that holds on the fitted curve at `now_step`, or None."""
    epoch = _epoch_steps(steps_per_epoch)
    if rule.max_steps is not None and now_step >= rule.max_steps:
        return "max_steps"
    if rule.max_epochs is not None and epoch and now_step >= rule.max_epochs * epoch - 1e-9:
        return "max_epochs"
    if rule.max_seconds is not None and elapsed_seconds >= rule.max_seconds:
        return "max_seconds"
    target_metric, max_cost = _own_conditions(rule)
    if max_cost is not None and spent >= max_cost:
        return "max_cost"
    if target_metric is not None and metric is not None and metric.has_reached(target_metric, now_step):
        return "target_metric"
    if rule.target_loss is not None and float(curve.predict([now_step])[0]) <= rule.target_loss:
        return "target_loss"
    if rule.loss_decrease is not None and epoch and _stays_small(curve, rule, rule.loss_decrease, epoch, now_step):
        return "loss_decrease"
    return None


def _epoch_steps(steps_per_epoch: float | None) -> float | None:
    return steps_per_epoch if steps_per_epoch and 0 < steps_per_epoch < math.inf else None


def _stays_small(curve: LossCurve, rule: ConvergenceRule, delta: float, epoch: float, now_step: float) -> bool:
    """Whether the fitted loss fell by less than `delta` in each of the last `patience_epochs` epochs."""
    patience = max(rule.patience_epochs, 1)
    first = now_step - patience * epoch
    seen_before = first - curve.first_step >= -1e-9 and first >= epoch  # one epoch to start from, at least
    if not seen_before or curve.n_points < LEAST_POINTS:
        return False
    starts = first + epoch * np.arange(patience, dtype=np.float64)
    return bool(np.all(_falls_little(curve, starts, delta, epoch, relative=rule.relative)))


def _falls_little(
    curve: LossCurve, starts: FloatArray, delta: float, epoch: float, *, relative: bool, noise: float = 0.0
) -> BoolArray:
    """(n,) whether the fitted loss falls by less than `delta` in the epoch that begins at each of `starts` (n,).

    Where it is to hold on losses with `noise`, a fitted decrease d counts as d² / (d + noise/8) (docs/models.md).
    """
    before, after = curve.predict(starts), curve.predict(starts + epoch)
    bar = delta * (np.abs(before) if relative else curve.scale)
    little: BoolArray = before - after < (bar + np.sqrt(bar**2 + bar * noise / 2.0)) / 2.0
    return little


def _own_conditions(rule: ConvergenceRule) -> tuple[float | None, float | None]:
    """`target_metric` and `max_cost`, which other kinds of rules do not have."""
    return (rule.target_metric, rule.max_cost) if isinstance(rule, Rule) else (None, None)


def _limits(rule: ConvergenceRule, steps_per_epoch: float | None, now_step: float, progress: _Progress) -> list[_End]:
    """The ends that do not depend on the loss."""
    epoch = _epoch_steps(steps_per_epoch)
    _, max_cost = _own_conditions(rule)
    limits = []
    if rule.max_steps is not None:
        limits.append(_End(float(rule.max_steps), "max_steps"))
    if rule.max_epochs is not None and epoch:
        limits.append(_End(rule.max_epochs * epoch, "max_epochs"))
    if rule.max_seconds is not None:
        left = progress.steps_in(rule.max_seconds - progress.elapsed_seconds)
        limits.append(_End(now_step + left, "max_seconds"))
    if max_cost is not None and progress.cost_per_second:
        left = progress.steps_in((max_cost - progress.spent) / progress.cost_per_second)
        limits.append(_End(now_step + left, "max_cost"))
    return [limit for limit in limits if limit.step < math.inf]


def _curve_ends(
    curve: LossCurve,
    rule: ConvergenceRule,
    steps_per_epoch: float | None,
    search: _Search,
    metric: MetricCurve | None,
) -> list[_End]:
    """The ends that the loss and the metric decide, as far as they lie within the horizon."""
    epoch = _epoch_steps(steps_per_epoch)
    target_metric, _ = _own_conditions(rule)
    ends = []
    if target_metric is not None and metric is not None and metric.n_points:
        step = _target_step(metric.shortfall, metric.shortfall_at(target_metric), search)
        ends.append(_End(step, "target_metric"))
    if rule.target_loss is not None and curve.n_points:
        ends.append(_End(_target_step(curve, rule.target_loss, search), "target_loss"))
    if rule.loss_decrease is not None and epoch and curve.n_points >= LEAST_POINTS:
        begins = _decrease_step(curve, rule, rule.loss_decrease, epoch, search)
        ends_at = begins + max(rule.patience_epochs, 1) * epoch
        ends.append(_End(max(ends_at, _NOT_BEFORE * search.now_step) if search.measured else ends_at, "loss_decrease"))
    return [end for end in ends if end.step <= search.horizon]


def _target_step(curve: LossCurve, target: float, search: _Search) -> float:
    step = curve.step_of_target(target)
    if step is not None:
        return step
    return first_step(lambda steps: curve.predict(steps) <= target, search.now_step, search.horizon)


def _decrease_step(curve: LossCurve, rule: ConvergenceRule, delta: float, epoch: float, search: _Search) -> float:
    """First step from which on the loss falls by less than `delta` in an epoch.

    Not before the end of the first epoch: it has to be seen before anything can be compared with it.
    """
    delta = min(max(delta, 1e-12), 1.0)
    step = curve.step_of_decrease(delta, epoch, relative=rule.relative)
    if step is not None:
        return max(step, epoch)
    earliest = max(search.now_step - max(rule.patience_epochs, 1) * epoch, epoch)

    def holds(starts: FloatArray) -> BoolArray:
        return _falls_little(curve, starts, delta, epoch, relative=rule.relative)

    def holds_measured(starts: FloatArray) -> BoolArray:
        """At three overlapping epochs: the noise of finished runs must not end it."""
        overlapping = (starts + epoch * np.arange(3)[:, None] / 3.0).ravel()
        noise = _epoch_noise(curve, epoch)
        little = _falls_little(curve, overlapping, delta, epoch, relative=rule.relative, noise=noise)
        return np.asarray(little.reshape(3, -1).all(axis=0))

    return first_step(holds_measured if search.measured else holds, earliest, search.horizon)


def _epoch_noise(curve: LossCurve, epoch: float) -> float:
    """Standard deviation of the measured decrease from one epoch to the next, in units of the loss."""
    points_per_epoch = max(epoch / curve.spacing, 1.0) if curve.spacing > 0 else 1.0
    return curve.jitter * curve.scale * math.sqrt(2.0 / points_per_epoch)
