"""When a job will end by what ended jobs of the same task took under such a rule: until its own losses say more.

A command that announces its steps may end sooner, as one does that stops early: where earlier runs of it did, it may
end at the part of what it announced at which they ended.

A rule about the decrease of the loss holds the later, the smaller the decrease is. Ended jobs that asked for other
decreases are compared by a power of the ratio, fitted to their ends. What is believed of the power before is what the
curves fitted to their losses say, on which both rules hold somewhere; without any it is -1, as for losses that fall
like a power of the step.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from optimus_models.convergence import HORIZON, LEAST_POINTS, Rule, fitted_end_epoch
from optimus_models.history import FloatArray
from optimus_models.loss.curve import LossCurve
from optimus_models.loss.ends import Prediction
from optimus_scheduler.forecast.censoring import ended_by, is_whole
from optimus_scheduler.forecast.time_left import given_not_ended
from optimus_scheduler.model import BY_CLOCK, LIMIT_RULES, REACH, ConvergenceRule, EndedJob, Interval, Job
from optimus_scheduler.settings import CONVERGENCE_POINTS

_SPREAD, _SPREAD_COUNT = 0.5, 2.0
"""Believed spread of the logarithm of total steps among jobs of one task, and how many jobs' worth that belief is."""
_POWER, _POWER_SPREAD, _TOLD_SPREAD, _RESIDUAL = -1.0, 0.5, 0.25, 0.15
"""Believed power of the decrease that epochs go by, and its spread; that of a power that losses tell (on real training
logs, docs/studies/models.md); the believed spread of ln epochs about such a power."""
_MOST_EPOCHS = 10_000
"""Up to here a fitted curve is looked at."""
EARLY = 0.9
"""A command that ends before this part of the steps that it announced has ended early."""
_AS_ANNOUNCED = 0.5
"""For so many earlier runs counts what the command says itself; of none is it known then that it ended early."""
_REPEATED_SPREAD = 0.25
"""Believed spread of the logarithm of the steps of runs with the same arguments that ended early."""
_NORMAL = np.array([NormalDist().inv_cdf((place + 0.5) / 20) for place in range(20)])
"""Equally likely values of a normal variable."""
_MOST_CONFIDENCE = 0.4
"""Confidence with many precedents: a curve of its own soon says more."""


def precedents(job: Job) -> Sequence[EndedJob]:
    """Ended jobs of the same task and project that had the same rule, and knew their epochs."""
    rule = job.spec.convergence.without_clock
    return [
        ended
        for ended in comparable(job.spec.convergence, job.similar)
        if ended.n_epochs and ended.rule == rule and ended.project == job.spec.project
    ]


def comparable(rule: ConvergenceRule, ended: Sequence[EndedJob]) -> list[EndedJob]:
    """Runs to compare with a job that has this rule but for limits of time and money, as if they had had none.

    Such limits only bound its end. Runs that one ended are left out, unless theirs was the same: they would have gone
    on.
    """
    found = []
    for each in ended:
        if each.rule is None or not each.rule.has_clock:
            found.append(each)
        elif each.rule == rule or not set(BY_CLOCK).intersection(ended_by(each)):
            found.append(replace(each, rule=each.rule.without_clock))
    return found


class End(NamedTuple):
    """Where a rule would have ended a job."""

    epochs: float
    spread: float = 0.0
    """Of its logarithm, because it asked for another decrease."""


def ends_under(rule: ConvergenceRule, ended: Sequence[EndedJob], arguments: tuple[str, ...] = ()) -> dict[str, End]:
    """Where each of these jobs of one task would have ended under this rule and with these arguments, by id.

    Without those that had another kind of rule, or that another limit ended before their loss did.
    """
    decrease = rule.loss_decrease
    found = {one.id: End(epochs_for(arguments, one)) for one in ended if one.n_epochs and _is_same(one, rule)}
    alike = [(one, one.rule.loss_decrease) for one in ended if one.n_epochs and one.rule and _is_alike(one, rule)]
    if decrease is None or not any(one.id not in found for one, _ in alike):
        return found
    ratios = np.log([(theirs or decrease) / decrease for _, theirs in alike])
    epochs = np.log([epochs_for(arguments, one) for one, _ in alike])
    around = ratios - ratios.mean()
    believed, spread = _believed_power([one for one, _ in alike], ratios, rule)
    weight = float(around @ around) + (_RESIDUAL / spread) ** 2
    power = believed + float(around @ (epochs - believed * around)) / weight
    power = min(power, max(believed, 0.0))
    least = 1.0 + max(rule.patience_epochs, 1)
    for (one, _), ratio in zip(alike, ratios.tolist(), strict=True):
        held = epochs_for(arguments, one)
        moved = max(held * math.exp(-power * ratio), min(held, least))
        found.setdefault(one.id, End(moved, abs(ratio) * _RESIDUAL / math.sqrt(weight)))
    return found


def ends_by_loss_under(
    rule: ConvergenceRule, ended: Sequence[EndedJob], arguments: tuple[str, ...] = ()
) -> dict[str, End]:
    """`ends_under`, without jobs that a limit ended: where their losses would have, nobody knows."""
    limited = {one.id for one in ended if (by := ended_by(one)) and LIMIT_RULES.issuperset(by)}
    found = ends_under(rule.without_clock, comparable(rule, ended), arguments)
    return {job_id: end for job_id, end in found.items() if job_id not in limited}


def epochs_for(arguments: tuple[str, ...], ended: EndedJob) -> float:
    """The epochs after which the rule of a run would have ended it with these arguments: those that it made.

    A rule about the decrease of the loss is judged from a number of losses on (`judged_from`), which a fast run
    comes to many epochs after its rule held. One with other arguments may be slower. So of a run that was ended soon
    after these losses, and by whose fitted losses the rule held before, it is where it did.
    """
    n_losses, epoch = len(ended.losses), ended.steps_per_epoch
    least = CONVERGENCE_POINTS if ended.judged_from is None else ended.judged_from
    is_soon = least <= n_losses < 2 * least
    if ended.arguments == arguments or not epoch or not is_soon or "loss_decrease" not in ended_by(ended):
        return ended.n_epochs
    fitted = _fitted_end(ended.loss_steps, ended.losses, epoch, ended.n_epochs, ended.rule)
    judged_from = ended.loss_steps[least - 1] / epoch
    return fitted if fitted is not None and fitted < judged_from else ended.n_epochs


def _believed_power(ended: Sequence[EndedJob], ratios: FloatArray, rule: ConvergenceRule) -> tuple[float, float]:
    """The power of the decrease that epochs go by, and its spread: -1, as for losses that fall like a power of a step,
    and what the losses of these jobs tell, the less, the further a fitted curve misses the run's own end.

    `ratios` (n,): ln of their decreases by that of the rule.
    """
    told, sure = [], []
    for one, ratio in zip(ended, ratios.tolist(), strict=True):
        found = _moved_by_curve(one.loss_steps, one.losses, one.steps_per_epoch or 0.0, one.n_epochs, one.rule, rule)
        if found is not None and ratio:
            told.append(-found.moved / ratio)
            sure.append(1.0 / (_TOLD_SPREAD**2 + (found.missed / ratio) ** 2))
    prior = _POWER_SPREAD**-2
    together = prior + max(sure, default=0.0)  # they are of one kind: many are not surer than the best
    by_losses = sum(map(operator.mul, sure, told)) / sum(sure) if sure else 0.0
    return (prior * _POWER + (together - prior) * by_losses) / together, together**-0.5


class _Moved(NamedTuple):
    """Logarithms of ratios of epochs, by a fitted curve."""

    moved: float
    """The end under another rule by that under the run's own."""
    missed: float
    """How far the end under its own rule lies from where it really ended, and what whole epochs leave open."""


@lru_cache(maxsize=1024)
def _moved_by_curve(
    steps: tuple[float, ...],
    losses: tuple[float, ...],
    steps_per_epoch: float,
    n_epochs: float,
    asked: ConvergenceRule | None,
    rule: ConvergenceRule,
) -> _Moved | None:
    """What the losses of a run that `asked` for one rule tell of its end under `rule`; None where they tell nothing."""
    before, after = (_fitted_end(steps, losses, steps_per_epoch, n_epochs, each) for each in (asked, rule))
    if not before or not after:
        return None
    return _Moved(math.log(after / before), math.hypot(math.log(before / n_epochs), 1.0 / before))


@lru_cache(maxsize=1024)
def _fitted_end(
    steps: tuple[float, ...],
    losses: tuple[float, ...],
    steps_per_epoch: float,
    n_epochs: float,
    rule: ConvergenceRule | None,
) -> int | None:
    """The epoch in which the fitted losses of a run of `n_epochs` hold a rule about their decrease; None: in none."""
    if len(losses) < LEAST_POINTS or rule is None:
        return None
    curve, most = LossCurve.fit(steps, losses), min(math.ceil(HORIZON * n_epochs), _MOST_EPOCHS)
    decrease = Rule(rule.loss_decrease, rule.relative, rule.patience_epochs)
    return fitted_end_epoch(curve, decrease, steps_per_epoch, most)


def _is_alike(ended: EndedJob, rule: ConvergenceRule) -> bool:
    """Whether the loss ended it, and the rules differ in their decreases at most."""
    if ended.rule is None or rule.loss_decrease is None or "loss_decrease" not in ended_by(ended):
        return False
    return _unlimited(replace(ended.rule, loss_decrease=rule.loss_decrease)) == _unlimited(rule)


def _is_same(ended: EndedJob, rule: ConvergenceRule) -> bool:
    """Whether it had this rule, or would have but for limits, none of which ended it."""
    if ended.rule is None or ended.rule == rule:
        return ended.rule is not None
    return _unlimited(ended.rule) == _unlimited(rule) and not _was_limited(ended)


def _was_limited(ended: EndedJob) -> bool:
    """Whether a limit of steps or epochs ended it. Its last epoch may have been another number of steps."""
    most = None if ended.rule is None else ended.rule.max_epochs
    return not LIMIT_RULES.isdisjoint(ended_by(ended)) or (most is not None and ended.n_epochs >= most - 0.5)


def _unlimited(rule: ConvergenceRule) -> ConvergenceRule:
    """Without limits of steps and epochs. What a command announces is no limit."""
    return replace(rule, max_epochs=None, max_steps=rule.max_steps if rule.ends_itself else None)


def _at_the_limit(rule: ConvergenceRule, ended: Sequence[EndedJob], steps_per_epoch: float) -> dict[str, End]:
    """Jobs that had this rule with other limits, and passed that of this one: they would have ended there."""
    by_steps = math.inf if rule.max_steps is None or rule.ends_itself else rule.max_steps / steps_per_epoch
    limit = min(by_steps, math.inf if rule.max_epochs is None else rule.max_epochs)
    return {
        one.id: End(limit)
        for one in ended
        if one.rule is not None and one.n_epochs >= limit and one.rule != rule
        if _unlimited(one.rule) == _unlimited(rule)
    }


def confidence(n_precedents: int) -> float:
    """Of a prediction by so many precedents."""
    return _MOST_CONFIDENCE * n_precedents / (n_precedents + 1.0)


def with_precedents(job: Job, steps_per_epoch: float | None, own: Prediction | None) -> Prediction | None:
    """The prediction by precedents, where the job's `own` curve gives none (`own` is None, or a limit of its rule).

    The sooner of the two counts; a job that has gone on for longer than its precedents is unlike them. Those that came
    to the limit say no more than its own losses, where these put the end there, too: where their rule would have ended
    them, nobody knows.
    """
    name = _curve_rule(job)
    if (own is not None and own.rule not in LIMIT_RULES) or not steps_per_epoch or name is None:
        return own
    rule = job.spec.convergence.without_clock
    mine = [each for each in comparable(job.spec.convergence, job.similar) if each.project == job.spec.project]
    ends = ends_under(rule, mine, job.spec.arguments) | _at_the_limit(rule, mine, steps_per_epoch)
    if not ends:
        return own
    if own is not None and len(job.losses) >= LEAST_POINTS:
        at_the_limit = own.high - 0.5 * steps_per_epoch
        if all(each.epochs * steps_per_epoch >= at_the_limit for each in ends.values()):
            return own
    logs = [math.log(each.epochs * steps_per_epoch) for each in ends.values()]
    mean, spread = with_belief(logs, sum(each.spread**2 for each in ends.values()))
    expected = math.exp(mean)
    if expected <= job.step:
        return own
    low, high = max(expected * math.exp(-REACH * spread), float(job.step)), expected * math.exp(REACH * spread)
    if own is not None and own.high <= expected:
        return own._replace(mean=own.high, low=min(own.high, low))
    return Prediction(expected, low, high if own is None else min(high, own.high), name)


def with_same_runs(job: Job, steps_per_epoch: float | None, own: Prediction | None) -> Prediction | None:
    """The prediction by ended runs with the same arguments and the same rule, beside the job's `own` curve.

    For jobs that tell no epochs: by epochs the losses of runs are compared, and tell more (`priors`). The ends of the
    runs and the own end are means of logarithms, each weighed by how sure it is, with their disagreement in the spread.
    """
    rule, name = job.spec.convergence.without_clock, _curve_rule(job)
    if steps_per_epoch or name is None:
        return own
    same = (
        each
        for each in comparable(job.spec.convergence, job.similar)
        if each.arguments == job.spec.arguments and each.rule == rule and is_whole(each, rule)
    )
    logs = [math.log(each.total_steps) for each in same if each.total_steps > 0 and not each.steps_per_epoch]
    if not logs:
        return own
    mean, spread = with_belief(logs)
    bounds = (math.exp(mean + reach * spread) for reach in (0.0, -REACH, REACH))
    by_runs = Prediction(*given_not_ended(Interval(*bounds), 0.0, job.step), name)
    if own is None or own.rule in LIMIT_RULES:
        return by_runs if own is None or by_runs.mean < own.mean else own
    ends = [math.log(max(each.mean, 1.0)) for each in (own, by_runs)]
    variances = [max(math.log(each.high / max(each.low, 1.0)) / (2.0 * REACH), 1e-3) ** 2 for each in (own, by_runs)]
    weights = [1.0 / each for each in variances]
    middle = sum(map(operator.mul, weights, ends)) / sum(weights)
    apart = sum(weight * (end - middle) ** 2 for weight, end in zip(weights, ends, strict=True)) / sum(weights)
    sigma = math.sqrt(1.0 / sum(weights) + apart)
    total, low, high = (max(math.exp(middle + reach * sigma), float(job.step)) for reach in (0.0, -REACH, REACH))
    return Prediction(total, low, high, own.rule)


def with_belief(
    logs: Sequence[float], further_squares: float = 0.0, weights: Sequence[float] = ()
) -> tuple[float, float]:
    """Mean and spread of the logarithm of the length of a further job of a task, by those of ended ones (at least one)
    and what is believed before. `further_squares`: of deviations, where the lengths themselves are doubtful; `weights`:
    of each by the others, above 0; empty: all are equal."""
    parts = [weight * len(logs) / sum(weights) for weight in weights] or [1.0] * len(logs)
    mean = sum(map(operator.mul, parts, logs)) / len(logs)
    squares = sum(part * (value - mean) ** 2 for part, value in zip(parts, logs, strict=True)) + further_squares
    variance = (squares + _SPREAD_COUNT * _SPREAD**2) / (len(logs) + _SPREAD_COUNT)
    return mean, math.sqrt(variance * (1.0 + 1.0 / len(logs)))


class EarlyEnds(NamedTuple):
    """Where earlier runs of a command ended by themselves."""

    parts: list[float]
    """Of the steps that they announced; empty where none ended early."""
    spread: float
    """Believed spread of the logarithm of such a part, before any is known."""


def early_ends(job: Job) -> EarlyEnds:
    """Of the runs with the same arguments, those of its project where there are any, or of all of its project where
    there are none; none where the job announces nothing. Those that their rule ended tell nothing of it."""
    if not job.spec.convergence.ends_itself:
        return EarlyEnds([], _SPREAD)
    runs = [
        ended
        for ended in job.similar
        if ended.announced_steps and ended.total_steps > 0 and not {"max_steps", "max_epochs"} & {*ended_by(ended)}
    ]
    own = [ended for ended in runs if ended.project == job.spec.project]
    repeated = [ended for ended in runs if ended.arguments == job.spec.arguments]
    same = [ended for ended in repeated if ended.project == job.spec.project] or repeated
    parts = [min(ended.total_steps / (ended.announced_steps or 1), 1.0) for ended in same or own]
    return EarlyEnds(parts if any(part < EARLY for part in parts) else [], _REPEATED_SPREAD if same else _SPREAD)


def with_early_ends(job: Job, own: Prediction | None) -> Prediction | None:
    """The prediction of a command that announced its steps, where earlier runs of it ended before theirs.

    A mixture of ends at what it announces and round the parts at which the others ended, of those that are ahead of it.
    """
    parts, believed = early_ends(job)
    if own is None or own.rule != "max_steps" or not parts:
        return own
    early = np.log([part for part in parts if part < EARLY])
    squares = float(((early - early.mean()) ** 2).sum()) + _SPREAD_COUNT * believed**2
    spread = math.sqrt(squares / (len(early) + _SPREAD_COUNT) * (1.0 + 1.0 / len(early)))
    around = own.mean * np.exp(early[:, None] + spread * _NORMAL).ravel()
    ahead = np.sort(around[(around > job.step) & (around < own.mean)])
    at_the_end = _AS_ANNOUNCED + len(parts) - len(early)
    before = len(ahead) / len(_NORMAL)
    share = np.append((np.arange(len(ahead)) + 0.5) / len(_NORMAL), before) / (before + at_the_end)
    low, mean, high = np.interp([0.1, 0.5, 0.9], share, np.append(ahead, own.mean)).tolist()
    return own._replace(mean=mean, low=low, high=high)


def may_end_by_curve(job: Job) -> bool:
    """Whether its rule asks for a loss, a decrease of it, or a figure of evaluations."""
    return _curve_rule(job) is not None


def _curve_rule(job: Job) -> str | None:
    """The part of the rule that ended the precedents, most likely; None when only limits can end the job."""
    rule = job.spec.convergence
    names = ("target_metric", "target_loss", "loss_decrease")
    return next((name for name in names if getattr(rule, name) is not None), None)
