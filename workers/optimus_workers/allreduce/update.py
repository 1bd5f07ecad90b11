"""The update rule on all of a worker's parameters, by torch's fused kernels, where the parameters are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from optimus_workers.wire.values import UpdateRule


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
