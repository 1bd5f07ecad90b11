"""Any optimizer of torch as a task's update rule, for all-reduce jobs: their workers hold all of the state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from optimus_workers.errors import TaskError


@dataclass(frozen=True, slots=True)
class TorchOptimizer:
    """`TorchOptimizer(torch.optim.RAdam, learning_rate=1e-3, options={"betas": (0.9, 0.99)})`.

    What an optimizer keeps for each parameter (`optimizer.state[parameter]`) may be tensors of at most as many numbers
    as the parameter has, and plain numbers. Raises `TaskError` when a field cannot be what it says.
    """

    make: Callable[..., torch.optim.Optimizer]
    """`make(parameters, lr=..., **options)`: an optimizer class, or a function like one."""
    learning_rate: float
    """`learning_rate_at` and a plateau schedule multiply it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else it is made with."""
    max_gradient_norm: float | None = None
    """See `OptimizerSpec`."""

    def __post_init__(self) -> None:
        rate, limit = self.learning_rate, self.max_gradient_norm
        if not callable(self.make):
            raise TaskError("make must be an optimizer class, such as torch.optim.RAdam, or a function like one")
        if not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
            raise TaskError("learning_rate must be above 0")
        if "lr" in self.options:
            raise TaskError("options must not have lr: it is learning_rate")
        if limit is not None and not (isinstance(limit, int | float) and math.isfinite(limit) and limit > 0):
            raise TaskError("max_gradient_norm must be above 0, or None")

    @property
    def weight_decay(self) -> float:
        """Of groups that do not say theirs; 0 for an optimizer that knows no weight decay."""
        return float(self._defaults.get("weight_decay") or 0.0)

    @property
    def decays(self) -> bool:
        """Whether it knows weight decay."""
        return "weight_decay" in self._defaults

    @property
    def _defaults(self) -> Mapping[str, Any]:
        return self.over([nn.Parameter(torch.zeros(1))]).defaults

    def over(self, parameters: Any) -> torch.optim.Optimizer:
        """An optimizer of these parameters, or groups of them. Raises `TaskError` when it is none."""
        made: object = self.make(parameters, lr=self.learning_rate, **self.options)
        if not isinstance(made, torch.optim.Optimizer):
            raise TaskError(f"make must make a torch.optim.Optimizer, not {type(made).__name__}")
        return made
