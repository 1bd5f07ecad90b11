"""The update rule on one chunk, group by group. One fused kernel per rule, at boundaries that are multiples of 16
floats, so that the result does not depend on how the vector is cut (see `ranges`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from optimus_workers.ranges import Range
from optimus_workers.wire.values import UpdateRule


def n_state_sections(rule: UpdateRule) -> int:
    """Vectors of optimizer state beside the parameters."""
    if rule.kind == "adamw":
        return 2  # first and second moment
    return 1 if rule.momentum > 0 else 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a chunk that one call updates."""

    first: int
    end: int
    rule: UpdateRule
    learning_rate_scale: float = 1.0


def pieces(rule: UpdateRule, part: Range) -> Iterator[Piece]:
    """The pieces of [first, end), a range of parameters, in order."""
    first, end = part
    if not rule.groups:
        yield Piece(first, end, rule)
    for group in rule.groups:
        start, stop = max(first, group.first), min(end, group.end)
        if start < stop:
            yield Piece(start, stop, replace(rule, weight_decay=group.weight_decay), group.learning_rate_scale)


def write_update(
    rule: UpdateRule, learning_rate: float, n_updates: int, old: list[Tensor], gradient: Tensor, new: list[Tensor]
) -> None:
    """What `apply_update` would make of `old` (parameters and state), written into `new`; all of shape (n,)."""
    if rule.kind == "sgd" and rule.momentum > 0 and not rule.nesterov and not rule.weight_decay:
        # The same roundings as torch's fused kernel has, without copies of what is written anew all over.
        torch.mul(old[1], rule.momentum, out=new[1])
        new[1].add_(gradient)
        torch.sub(old[0], new[1], alpha=learning_rate, out=new[0])
        return
    for source, target in zip(old, new, strict=True):
        target.copy_(source)
    apply_update(rule, learning_rate, n_updates, new[0], gradient, new[1:])


def apply_update(
    rule: UpdateRule, learning_rate: float, n_updates: int, parameters: Tensor, gradient: Tensor, state: list[Tensor]
) -> None:
    """Update `parameters` and `state` in place; all of shape (n,). `n_updates`: how many came before this one.

    State that is all zeros is that of an optimizer before its first update.
    """
    if rule.kind == "adamw":
        adamw(
            [parameters],
            [gradient],
            [state[0]],
            [state[1]],
            [],
            [torch.tensor(float(n_updates))],
            fused=True,
            amsgrad=False,
            beta1=rule.betas[0],
            beta2=rule.betas[1],
            lr=learning_rate,
            weight_decay=rule.weight_decay,
            eps=rule.eps,
            maximize=False,
        )
        return
    sgd(
        [parameters],
        [gradient],
        [state[0] if state else None],
        fused=True,
        weight_decay=rule.weight_decay,
        momentum=rule.momentum,
        lr=learning_rate,
        dampening=0.0,
        nesterov=rule.nesterov,
        maximize=False,
    )
