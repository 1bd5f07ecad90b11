"""What the parts of a rule need that a script has to tell: without it they never hold. Pure.

A task always tells its losses and epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from optimus_contract.job import Convergence
from optimus_service.store.records import JobRecord


class Figure(NamedTuple):
    """A figure that is to come to a target."""

    what: str
    """`loss`, or the name of a metric."""
    target: float


class Untold(NamedTuple):
    """What a script has not told, though it makes steps."""

    what: str
    """`epoch`, `loss`, or the name of a metric."""
    rule: str
    """The part of its rule that needs it, in words."""
    is_counted: bool = False
    """It tells its epoch: only how many steps one has is not known."""


def is_of_a_script(job: JobRecord) -> bool:
    """Whether nothing but what a job likes to tell is known of its training."""
    return job.asked.command is not None or job.is_tracked


def figures_asked(rule: Convergence) -> list[Figure]:
    """The figures that a rule waits for, each with its target."""
    found = [] if rule.target_loss is None else [Figure("loss", rule.target_loss)]
    metric = rule.target_metric
    target = None if metric is None else (metric.at_most if metric.at_least is None else metric.at_least)
    return found if metric is None or target is None else [*found, Figure(metric.name, target)]


def untold_of(job: JobRecord, n_figures: Mapping[str, int]) -> list[Untold]:
    """What parts of the rule of a script need and it has not told so far; nothing before its first step.

    `n_figures`: how many losses are known, by `loss`, and values of its metric, by the name of that; of what is not in
    here some are.
    """
    if not job.step or not is_of_a_script(job):
        return []
    rule, no_loss = job.asked.convergence, job.loss is None and not n_figures.get("loss", 1)
    found = list[Untold]()
    if rule.loss_decrease is not None:
        by = f"its loss falls by less than {100 * rule.loss_decrease.below:g} % per epoch"
        is_counted = bool(job.epoch)  # 0 is the first one of some, and of others it is that none was told
        found += [Untold("epoch", by, is_counted)] * ((job.profile or {}).get("steps_per_epoch") is None)
        found += [Untold("loss", by)] * no_loss
    for what, target in figures_asked(rule):
        is_missing = no_loss if what == "loss" else not n_figures.get(what, 1)
        found += [Untold(what, f"its {what} comes to {target:g}")] * is_missing
    return found


def untold_words(untold: Untold) -> str:
    """That this part of the rule cannot hold, and what would tell what it needs."""
    cannot = f'its rule "{untold.rule}" cannot hold'
    if untold.is_counted:
        known = "How many steps an epoch has is known when its second one begins at the earliest"
        return f"{known}: until it is, {cannot}."
    if untold.what == "epoch":
        told = "It has told no epoch so far, or epoch 0 alone: until it tells the next one"
    else:
        told = f"It has told no {untold.what} so far: until it does"
    return f"{told}, {cannot}. {_how_to_tell(untold.what)}"


def on_epochs(rule: Convergence) -> list[str]:
    """Of the rule of a script that has not begun, and of which no earlier run tells that it counts epochs."""
    if rule.loss_decrease is None:
        return []
    counts = "Its rule of the decrease of its loss counts epochs: it cannot hold if none is told."
    return [f"{counts} {_how_to_tell('epoch')}"]


def _how_to_tell(what: str) -> str:
    if what in ("epoch", "loss"):
        read = f"--progress-pattern reads it from its output (group `{what}`)"
        return f"`report({what}=...)` of optimus_client tells it, and {read}."
    return f"`report(metrics=...)` of optimus_client tells it, and --progress-pattern reads it (group `{what}`)."
