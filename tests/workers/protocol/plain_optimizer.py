"""The update rules that servers follow, as one writes them down in plain PyTorch: an operation after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from optimus_workers.wire.values import UpdateRule


class PlainOptimizer(torch.optim.Optimizer):
    """Groups as torch's optimizers have them: with "params" and what is not as in `rule` ("lr", "weight_decay")."""

    def __init__(self, groups: Iterable[dict[str, Any]], rule: UpdateRule) -> None:
        super().__init__(groups, {"lr": 1.0, "weight_decay": rule.weight_decay})
        self.rule = rule

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                assert parameter.grad is not None
                write = self._adamw if self.rule.kind == "adamw" else self._sgd
                write(parameter, parameter.grad, group["lr"], group["weight_decay"], self.state[parameter])

    def _sgd(self, p: Tensor, g: Tensor, rate: float, decay: float, state: dict[str, Any]) -> None:
        mu = self.rule.momentum
        d = p * decay + g if decay else g
        if mu:
            m = state["momentum_buffer"] = state.get("momentum_buffer", torch.zeros_like(p)) * mu + d
            d = m * mu + d if self.rule.nesterov else m
        p.sub_(d * rate)

    def _adamw(self, p: Tensor, g: Tensor, rate: float, decay: float, state: dict[str, Any]) -> None:
        beta1, beta2 = self.rule.betas
        step = state["step"] = state.get("step", 0) + 1
        m, v = (state.get(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_sq"))
        m = state["exp_avg"] = m + (g - m) * (1 - beta1)
        v = state["exp_avg_sq"] = v * beta2 + g * g * (1 - beta2)
        correction = math.sqrt(1 - beta2**step)
        root = v.double().sqrt().float()  # as IEEE 754 rounds it; torch's root of float32 does not always
        change = m / (root + self.rule.eps * correction) * (rate * correction / (1 - beta1**step))
        p.copy_(p * (1 - rate * decay) - change)
