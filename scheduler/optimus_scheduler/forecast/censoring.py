"""What a run that its rule ended tells of jobs with other rules: that they take longer, and not how much. Pure.

A run that a target or a limit ended would have gone on: of a job without that, or with another one, its length is a
lower bound (right-censored). Of jobs with the same one it is a length like any other, as is that of a command that
ended by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optimus_scheduler.model import BY_CLOCK, COMMAND_ENDS, ConvergenceRule, EndedJob

_BY_CURVE = ("loss_decrease", "target_loss", "target_metric")


def ended_by(ended: EndedJob) -> tuple[str, ...]:
    """The parts of its rule one of which ended a run; empty: none did."""
    rule = ended.rule
    if rule is None or ended.ended_by == COMMAND_ENDS:
        return ()
    if ended.ended_by is not None:
        return (ended.ended_by,)
    if rule.max_steps is not None and ended.total_steps >= rule.max_steps:
        return ("max_steps",)
    if rule.max_epochs is not None and ended.n_epochs >= rule.max_epochs:
        return ("max_epochs",)
    return tuple([name for name in (*_BY_CURVE, *BY_CLOCK) if getattr(rule, name) is not None])


def is_whole(ended: EndedJob, rule: ConvergenceRule) -> bool:
    """Whether a job with this rule ends where the run did, if it trains like it; else it goes on there."""
    return all(_part(ended.rule, name) == _part(rule, name) for name in ended_by(ended))


def _part(rule: ConvergenceRule | None, name: str) -> object:
    if rule is None or name != "loss_decrease":
        return getattr(rule, name, None)
    return rule.loss_decrease, rule.relative, rule.patience_epochs


class Length(NamedTuple):
    """How long a run was, as a logarithm."""

    log: float
    is_whole: bool = True
    """False: it would have been longer."""


class Weighed(NamedTuple):
    """Lengths, shortest first, with how many runs each stands for."""

    logs: tuple[float, ...]
    weights: tuple[float, ...]
    is_open: bool
    """The last one is a run that would have been longer."""


def weighed(lengths: Sequence[Length]) -> Weighed:
    """What runs tell of a length: each that would have been longer counts for those that were, in equal parts, and the
    longest as it is (Efron 1967: the product-limit estimate of Kaplan and Meier)."""
    ordered = sorted(lengths, key=lambda each: (each.log, not each.is_whole))
    weights = [1.0] * len(ordered)
    for place, each in enumerate(ordered[:-1]):
        if not each.is_whole:
            share = weights[place] / (len(ordered) - place - 1)
            weights[place] = 0.0
            weights[place + 1 :] = [weight + share for weight in weights[place + 1 :]]
    kept = [(each.log, weight) for each, weight in zip(ordered, weights, strict=True) if weight]
    return Weighed(
        tuple([log for log, _ in kept]),
        tuple([weight for _, weight in kept]),
        bool(ordered) and not ordered[-1].is_whole,
    )


def quantiles(of: Weighed, parts: Sequence[float]) -> list[float]:
    """Lengths that these parts of the runs do not exceed, as logarithms."""
    if len(set(of.weights)) == 1:
        return [float(each) for each in np.quantile(of.logs, parts)]
    before = np.cumsum(of.weights) - np.array(of.weights) / 2.0
    return [float(each) for each in np.interp(parts, before / sum(of.weights), of.logs)]
