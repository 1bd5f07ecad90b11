"""When a job will be done: the convergence rule applied to its fitted loss curve.

Everything is evaluated on the fitted curve: on raw losses the noise of single epochs fires the rule almost at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import BoolArray, FloatArray, LossHistory
from optimus_models.loss.curve import LossCurve, MetricCurve
from optimus_models.loss.ends import Prediction, predicted_end
from optimus_models.loss.finished_runs import FinishedRun

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


_SURE_FALL = 5.0
"""A rule is looked at again and again: noise alone makes a fall of two standard errors in one of many looks at a first
plateau (docs/studies/models.md)."""
_MORE_LIKELY = 0.5
"""Confidence from which a curve is more likely right than wrong."""
_TAIL = 0.1
_TAIL_ODDS = math.log((1.0 - _TAIL) / _TAIL)
"""Ends of an 80 % interval are so many scales of a log-logistic distribution away from its median."""
_LATEST = 1e3
"""No end is looked for beyond so many times the curve's own."""
_HALVINGS = 40


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
) -> Prediction | None:
    """Predict the total number of steps of the job; None when nothing can be said.

    `steps_per_epoch` is needed by the rules that speak of epochs, `steps_per_second` (present speed) and
    `elapsed_seconds` by `max_seconds`, those and `spent` and `cost_per_second` (of the present allocation) by
    `max_cost`, `metric` by `target_metric`; a condition whose inputs are missing is left out. Never below `now_step`.

    The rule is predicted as `has_converged` judges it, on the fitted curve: noise of the losses plays no part. With
    finished runs, what is known of the end is their ends and that of the job's own curve (`predicted_end`). Where the
    loss may end the job and says nothing yet, any end up to the limit is believed, log-uniformly. Where its curve says
    that the limit ends the job, the interval begins as much sooner as the curve is unsure.
    """
    progress = _Progress(elapsed_seconds, steps_per_second, spent, cost_per_second)
    limit = min(_limits(rule, steps_per_epoch, now_step, progress), default=None)
    latest = math.inf if limit is None else max(limit.mean, now_step)
    if rule.loss_decrease is None and rule.target_loss is None and rule.target_metric is None:
        return None if limit is None else Prediction(latest, latest, latest, limit.rule)
    by_loss = min(_curve_ends(curve, rule, steps_per_epoch, now_step, metric), default=None)
    if by_loss is not None and by_loss.rule != "target_metric":
        by_loss = _as_sure_as_the_curve(by_loss, curve, now_step, latest)
    if limit is None:
        return by_loss
    if _is_at_limit(by_loss, curve, rule, latest):
        soonest = _soonest_before_the_limit(by_loss, curve.confidence, now_step, latest)
        return Prediction(latest, soonest, latest, limit.rule)
    if by_loss is None:
        soonest = _soonest_end(curve, rule, _epoch_steps(steps_per_epoch) or 0.0, now_step, latest)
        low, mean = (soonest * (latest / soonest) ** part if soonest > 0 else latest for part in (0.1, 0.5))
        return Prediction(min(mean, latest), min(low, mean, latest), latest, limit.rule)
    name = by_loss.rule if by_loss.mean <= latest else limit.rule
    return Prediction(min(by_loss.mean, latest), min(by_loss.low, latest), min(by_loss.high, latest), name)


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
    in the first epoch nor on fewer than `least_points` losses nor on a run that has just diverged. A decrease has not
    become small before the loss has surely fallen.
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
    """The first epoch at whose end `has_converged` would find the decrease rule to hold on the true losses.

    `losses`: at the ends of epochs 0, 1, ... None if it holds at none of them, or the rule has no `loss_decrease`.
    """
    at_end = np.asarray(losses, dtype=np.float64)
    delta, patience = rule.loss_decrease, max(rule.patience_epochs, 1)
    if delta is None or len(at_end) < 2 + patience:
        return None
    largest = float(np.max(np.abs(at_end)))
    little = _is_little(at_end[1:-1], at_end[2:], rule, delta, largest)  # nothing is seen before epoch 1
    stays_little = np.lib.stride_tricks.sliding_window_view(little, patience).all(axis=1)
    ends = at_end[1 + patience :]
    fell = at_end[0] - ends > delta * (np.abs(ends) if rule.relative else largest)
    held = np.flatnonzero(stays_little & fell)
    return int(held[0]) + 1 + patience if len(held) else None


def fitted_end_epoch(curve: LossCurve, rule: Rule, steps_per_epoch: float, n_epochs: int) -> int | None:
    """`converged_epoch` on a run's fitted losses at the ends of its first `n_epochs` epochs."""
    ends = steps_per_epoch * np.arange(n_epochs + 1, dtype=np.float64)
    return converged_epoch(curve.predict_alone(np.maximum(ends, curve.first_step)), rule)


def _epoch_steps(steps_per_epoch: float | None) -> float | None:
    return steps_per_epoch if steps_per_epoch and 0 < steps_per_epoch < math.inf else None


def _stays_small(curve: LossCurve, rule: Rule, delta: float, epoch: float, now_step: float) -> bool:
    """Whether the fitted loss fell by less than `delta` in each of the last `patience_epochs` epochs."""
    patience = max(rule.patience_epochs, 1)
    first = now_step - patience * epoch
    seen_before = first - curve.first_step >= -1e-9 and first >= epoch  # one epoch to start from, at least
    if not seen_before or not _has_fallen(curve, rule, delta) or not _is_sure_to_fall(curve):
        return False
    return bool(_decreases_stay_small(curve, rule, delta, epoch, np.array([first]))[0])


def _has_fallen(curve: LossCurve, rule: Rule, delta: float) -> bool:
    """Whether there is a fall that can have become small: none if the loss rises, diverges or has not moved yet."""
    present = float(curve.predict([curve.last_step])[0]) if rule.relative else curve.scale
    return curve.n_points >= LEAST_POINTS and curve.fall * curve.scale > delta * abs(present)


def _is_sure_to_fall(curve: LossCurve) -> bool:
    """Whether noise is no explanation of its fall, however often one looks."""
    return curve.fall > _SURE_FALL * curve.fall_error


def _decreases_stay_small(
    curve: LossCurve, rule: Rule, delta: float, epoch: float, starts: FloatArray, epochs: int | None = None
) -> BoolArray:
    """(n,) whether the fitted loss falls by less than `delta` in each of the `epochs` after `starts` (n,); None:
    `patience_epochs`."""
    patience = max(rule.patience_epochs, 1) if epochs is None else epochs
    begins = (starts[:, None] + epoch * np.arange(patience, dtype=np.float64)).reshape(-1)
    before, decrease = curve.predict_and_decrease_alone(begins, epoch)
    little = _is_little(before, before - decrease, rule, delta, curve.scale)
    return np.asarray(little.reshape(len(starts), -1).all(axis=1))


def _is_little(before: FloatArray, after: FloatArray, rule: Rule, delta: float, largest: float) -> BoolArray:
    """Whether losses fall by less than `delta` from `before` to `after`, one epoch later."""
    little: BoolArray = before - after < delta * (np.abs(before) if rule.relative else largest)
    return little


def whole_steps(steps: float) -> float:
    """The step that completes so many: the last one counts whole. 1e-9 absorbs the rounding of an exact product."""
    return float(math.ceil(steps * (1.0 - 1e-9) - 1e-9)) if math.isfinite(steps) else steps


def _limits(rule: Rule, steps_per_epoch: float | None, now_step: float, progress: _Progress) -> list[Prediction]:
    """The ends that do not depend on the loss."""
    epoch = _epoch_steps(steps_per_epoch)
    limits: dict[str, float] = {}
    if rule.max_steps is not None:
        limits["max_steps"] = float(rule.max_steps)
    if rule.max_epochs is not None and epoch:
        limits["max_epochs"] = whole_steps(rule.max_epochs * epoch)
    if rule.max_seconds is not None:
        limits["max_seconds"] = now_step + progress.steps_in(rule.max_seconds - progress.elapsed_seconds)
    if rule.max_cost is not None and progress.cost_per_second:
        seconds = (rule.max_cost - progress.spent) / progress.cost_per_second
        limits["max_cost"] = now_step + progress.steps_in(seconds)
    return [Prediction(step, step, step, name) for name, step in limits.items() if step < math.inf]


def _soonest_end(curve: LossCurve, rule: Rule, epoch: float, now_step: float, latest: float) -> float:
    """The first step at which the loss may end a job of which nothing says when; `latest` if a limit alone does.

    Of a loss that has fallen, its curve says that it goes on falling up to the limit. A job that has not begun may end
    in its first epochs, and one that has gone on for long goes on (Lindy).
    """
    by_loss = (rule.loss_decrease, rule.target_loss, rule.target_metric)
    has_begun = rule.loss_decrease is None or _has_fallen(curve, rule, rule.loss_decrease)
    if by_loss == (None, None, None) or (curve.n_points >= LEAST_POINTS and has_begun):
        return latest
    least = epoch * (1 + max(rule.patience_epochs, 1)) if rule.loss_decrease is not None else epoch
    return min(max(now_step, least, 1.0), latest)


def _is_at_limit(by_loss: Prediction | None, curve: LossCurve, rule: Rule, latest: float) -> bool:
    """Whether a curve without finished runs says that the loss goes on falling up to the limit."""
    of_loss = rule.loss_decrease is not None or rule.target_loss is not None
    if not of_loss or rule.target_metric is not None or curve.experts is not None or curve.n_points < LEAST_POINTS:
        return False
    if by_loss is not None:
        return by_loss.mean >= latest
    return rule.loss_decrease is None or _has_fallen(curve, rule, rule.loss_decrease)


def _soonest_before_the_limit(own: Prediction | None, sure: float, now_step: float, latest: float) -> float:
    """The 10th percentile of the end where the curve says that the limit ends the job; the limit may be it.

    With the probability `sure` the curve is right, else any end up to the limit is believed, log-uniformly.
    """
    if not 0 < now_step < latest:
        return latest
    width = 0.0 if own is None or own.low <= 0 else math.log(own.mean / own.low) / _TAIL_ODDS

    def before(step: float) -> float:
        """P(the end comes before `step`)."""
        by_curve = 0.0
        if own is not None and width > 0:
            by_curve = 1.0 / (1.0 + math.exp(min(math.log(own.mean / step) / width, 700.0)))
        return sure * by_curve + (1.0 - sure) * math.log(step / now_step) / math.log(latest / now_step)

    if before(latest) <= _TAIL:
        return latest
    low, high = math.log(now_step), math.log(latest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if before(math.exp(middle)) < _TAIL else (low, middle)
    return math.exp(high)


def _as_sure_as_the_curve(end: Prediction, curve: LossCurve, now_step: float, latest: float) -> Prediction:
    """An end by a curve that is more likely wrong than right may come much later than its interval says.

    The upper bound then is the 90th percentile of a mixture: by its confidence the curve's own distribution
    (log-logistic, as its interval says), else any end up to the limit, log-uniformly, or without a limit as Lindy's law
    says. A curve with finished runs beside it is judged by those (`predicted_end`).
    """
    sure = curve.confidence
    if sure >= _MORE_LIKELY or curve.experts is not None or now_step <= 0 or not end.mean < latest:
        return end

    def beyond(step: float) -> float:
        """P(the end comes after `step`), above the mean."""
        scale = math.log(max(end.high / end.mean, 1.0 + 1e-9)) / _TAIL_ODDS
        own = 1.0 / (1.0 + math.exp(min(math.log(step / end.mean) / scale, 700.0)))
        other = now_step / step if latest == math.inf else 1.0 - math.log(step / now_step) / math.log(latest / now_step)
        return sure * own + (1.0 - sure) * min(max(other, 0.0), 1.0)

    low, high = math.log(end.high), math.log(min(latest, _LATEST * max(end.high, now_step)))
    if low >= high or beyond(end.high) <= _TAIL:
        return end
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if beyond(math.exp(middle)) > _TAIL else (low, middle)
    return end._replace(high=math.exp(high))


def _curve_ends(
    curve: LossCurve, rule: Rule, steps_per_epoch: float | None, now_step: float, metric: MetricCurve | None
) -> list[Prediction]:
    """The ends that the loss and the metric decide, as far as they lie within the horizon."""
    epoch = _epoch_steps(steps_per_epoch)
    ends: list[Prediction | None] = []
    if rule.target_metric is not None and metric is not None and metric.n_points:
        target = metric.shortfall_at(rule.target_metric)
        ends.append(_target_end("target_metric", metric.shortfall, target, now_step))
    if rule.target_loss is not None and curve.n_points:
        ends.append(_target_end("target_loss", curve, rule.target_loss, now_step))
    if rule.loss_decrease is not None and epoch and curve.n_points:
        ends.append(_decrease_end(curve, rule, rule.loss_decrease, epoch, now_step))
    return [end for end in ends if end is not None]


def _target_end(name: str, curve: LossCurve, target: float, now_step: float) -> Prediction | None:
    """Where the expected loss and the bounds of its interval reach `target`; None if the first never does."""
    horizon = HORIZON * max(now_step, curve.last_step, 1.0)
    mean = _first_step(lambda steps: curve.predict(steps) <= target, now_step, horizon)
    if mean == math.inf:
        return None
    low = _first_step(lambda steps: curve.predict_interval(steps)[0] <= target, now_step, mean)
    high = _first_step(lambda steps: curve.predict_interval(steps)[1] <= target, mean, horizon)
    return Prediction(mean, min(low, mean), min(high, horizon), name)


def _decrease_end(curve: LossCurve, rule: Rule, delta: float, epoch: float, now_step: float) -> Prediction | None:
    own, experts = _decrease_step(curve, rule, delta, epoch, now_step), curve.experts
    if experts is None:
        return predicted_end("loss_decrease", now_step, own)
    theirs = np.array([_end_of_run(run, rule, epoch) for run in experts.prior.runs])
    spreads = np.array([run.end_spread for run in experts.prior.runs])
    if not _is_sure_to_fall(curve) and (theirs[experts.shares > 0] < math.inf).any():
        own = math.inf  # on a first plateau the curve says nothing that they do not say better
    return predicted_end("loss_decrease", now_step, own, experts.own_share, theirs, experts.shares, spreads)


def _decrease_step(curve: LossCurve, rule: Rule, delta: float, epoch: float, now_step: float) -> float:
    """The step at which the loss will have fallen by less than `delta` in each of the last `patience_epochs`, by the
    job's own curve; inf if that is beyond the horizon, or nothing can be said because there is no fall yet.

    Not before the end of the first epoch: it has to be seen before anything can be compared with it.
    """
    if not _has_fallen(curve, rule, delta):
        return math.inf
    patience, horizon = max(rule.patience_epochs, 1) * epoch, HORIZON * max(now_step, curve.last_step, 1.0)
    earliest = max(now_step - patience, epoch)
    begins = _first_step(
        lambda starts: _decreases_stay_small(curve, rule, delta, epoch, starts),
        earliest,
        horizon,
        None
        if rule.patience_epochs <= 1
        else lambda starts: _decreases_stay_small(curve, rule, delta, epoch, starts, epochs=1),
    )
    end = begins + patience
    return end if end <= horizon else math.inf


@lru_cache(maxsize=1024)
def _end_of_run(run: FinishedRun, rule: Rule, epoch: float) -> float:
    """The step at which the decrease rule ended a finished run, or would have ended it; inf if never.

    A run that was not ended by this rule is looked at with ever more of its losses, as `has_converged` looked at it.
    """
    if run.end_step is not None:
        return run.end_step
    steps, losses, delta = run.history.steps, run.history.losses, rule.loss_decrease or 0.0
    if len(steps) < LEAST_POINTS:
        return math.inf
    numbers = np.unique(np.geomspace(LEAST_POINTS, len(steps), _REPLAYED).round().astype(int)).tolist()
    curves = LossCurve.fit_many([LossHistory.of(steps[:n], losses[:n]) for n in numbers])
    held = (curve.last_step for curve in curves if _stays_small(curve, rule, delta, epoch, curve.last_step))
    return next(held, _decrease_step(curves[-1], rule, delta, epoch, curves[-1].last_step))


# --- where a condition begins to hold, and how wrong that is ---------------------------------------------------------

_REPLAYED = 128
"""Numbers of losses with which a finished run is looked at, 3 % apart or less."""
_SEARCH_POINTS = 128
"""Steps at which a curve without closed forms is looked at; again as often round the first hit, twice."""


def _first_step(
    holds: Callable[[FloatArray], BoolArray],
    earliest: float,
    horizon: float,
    may_hold: Callable[[FloatArray], BoolArray] | None = None,
) -> float:
    """The first step from `earliest` to `horizon` at which `holds`, to about 0.1 % of the way; inf if there is none.

    `may_hold`: is true wherever `holds` is, and costs less.
    """
    if earliest > horizon:
        return math.inf
    offsets = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, _SEARCH_POINTS)])
    steps = earliest + (horizon - earliest) * offsets
    first = _first_place(holds, may_hold or holds, steps)
    for _ in range(2):
        if first is None:
            return math.inf
        if first == 0:
            return float(steps[0])
        steps = np.linspace(steps[first - 1], steps[first], _SEARCH_POINTS)
        first = _first_place(holds, may_hold or holds, steps)
    return float(steps[first or 0])


def _first_place(
    holds: Callable[[FloatArray], BoolArray], may_hold: Callable[[FloatArray], BoolArray], steps: FloatArray
) -> int | None:
    """The first of `steps` (n,) at which `holds`; None if it holds at none."""
    places, begin, width = may_hold(steps).nonzero()[0], 0, 1
    if holds is may_hold:
        return int(places[0]) if len(places) else None
    while begin < len(places):  # the first mostly is the one
        some = places[begin : begin + width]
        held = holds(steps[some])
        if held.any():
            return int(some[np.argmax(held)])
        begin, width = begin + width, 4 * width
    return None
