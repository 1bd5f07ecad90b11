"""The update rule on a part of a chunk, group by group, in float32.

Additions, multiplications, divisions and square roots, one after the other and each rounded as IEEE 754 says: the
result depends neither on how the vector is cut nor on the machine. torch's fused kernels round a little less often,
differently on different processors, and would bring torch into the server (docs/studies/training-costs.md).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optimus_workers.wire.memory import Floats
from optimus_workers.wire.ranges import Range
from optimus_workers.wire.values import UpdateRule

_scratch = threading.local()


def n_state_sections(rule: UpdateRule) -> int:
    """Vectors of optimizer state beside the parameters."""
    if rule.kind == "adamw":
        return 2 + rule.extra_sections  # first and second moment
    return rule.extra_sections + (1 if rule.momentum > 0 else 0)


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
    rule: UpdateRule, learning_rate: float, n_updates: int, old: Sequence[Floats], gradient: Floats,
    new: Sequence[Floats],
) -> None:  # fmt: skip
    """Write into `new` what an update makes of `old` (parameters, then state), which may be the same arrays.

    All are of shape (n,); the gradient stays as it is. `n_updates`: how many came before this one. State that is all
    zeros is that of an optimizer before its first update.
    """
    if rule.kind == "adamw":
        _write_adamw(rule, learning_rate, n_updates, old, gradient, new)
    else:
        _write_sgd(rule, learning_rate, old, gradient, new)


def _write_sgd(
    rule: UpdateRule, learning_rate: float, old: Sequence[Floats], gradient: Floats, new: Sequence[Floats]
) -> None:
    """d = g + λp;  m ← μm + d;  p ← p − η(d + μm) with Nesterov's momentum, p − ηm with plain, p − ηd without."""
    scratch = thread_floats("update", len(gradient))
    change = gradient
    if rule.weight_decay:
        change = thread_floats("decayed", len(gradient))
        np.multiply(old[0], rule.weight_decay, out=change)
        np.add(change, gradient, out=change)
    if rule.momentum:
        np.multiply(old[1], rule.momentum, out=new[1])
        np.add(new[1], change, out=new[1])
        if rule.nesterov:
            np.multiply(new[1], rule.momentum, out=scratch)
            np.add(scratch, change, out=scratch)
            change = scratch
        else:
            change = new[1]
    np.multiply(change, learning_rate, out=scratch)
    np.subtract(old[0], scratch, out=new[0])


def _write_adamw(
    rule: UpdateRule, learning_rate: float, n_updates: int, old: Sequence[Floats], gradient: Floats,
    new: Sequence[Floats],
) -> None:  # fmt: skip
    """m ← m + (1−β₁)(g − m);  v ← β₂v + (1−β₂)g²;  p ← (1 − ηλ)p − ηc/(1−β₁ᵗ) · m / (√v + cε) with c = √(1−β₂ᵗ).

    Loshchilov and Hutter 2019, in the order of Kingma and Ba 2015 (end of section 2), which saves a pass.
    """
    beta1, beta2 = rule.betas
    step = n_updates + 1
    correction = math.sqrt(1.0 - beta2**step)
    scratch = thread_floats("update", len(gradient))
    np.subtract(gradient, old[1], out=scratch)
    np.multiply(scratch, 1.0 - beta1, out=scratch)
    np.add(old[1], scratch, out=new[1])
    np.multiply(gradient, gradient, out=scratch)
    np.multiply(scratch, 1.0 - beta2, out=scratch)
    np.multiply(old[2], beta2, out=new[2])
    np.add(new[2], scratch, out=new[2])
    np.sqrt(new[2], out=scratch)
    np.add(scratch, rule.eps * correction, out=scratch)
    np.divide(new[1], scratch, out=scratch)
    np.multiply(scratch, learning_rate * correction / (1.0 - beta1**step), out=scratch)
    np.multiply(old[0], 1.0 - learning_rate * rule.weight_decay, out=new[0])
    np.subtract(new[0], scratch, out=new[0])


def thread_floats(name: str, n_floats: int) -> Floats:
    """Memory of this thread, (n_floats,), which holds what it held until it is asked for again by this name."""
    floats: Floats | None = getattr(_scratch, name, None)
    if floats is None or len(floats) < n_floats:
        floats = np.empty(n_floats, np.float32)
        setattr(_scratch, name, floats)
    return floats[:n_floats]
