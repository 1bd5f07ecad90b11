"""A learning rate that falls when the loss of an epoch falls no more: torch's `ReduceLROnPlateau`, the same on each
member of an all-reduce job and after each change of size.

Each member adds up the loss of all members' examples, so all of them decide alike; what was added up and decided so
far is a vector of the job's state and travels with it. Its numbers are float32 at all times: a hand-over rounds none.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from optimus_workers.errors import TaskError
from optimus_workers.task.definition import TrainingTask

_COUNTS = ("num_bad_epochs", "cooldown_counter", "last_epoch")
_N_FLOATS = 2 + len(_COUNTS) + 2


class EpochPlateau:
    """The schedule of one member."""

    def __init__(self, task: TrainingTask) -> None:
        """Raises `TaskError` when the task's function makes something else, and what the user's code raises."""
        assert task.plateau is not None
        self._task = task
        self._base_rate = task.optimizer.learning_rate
        self._sums = torch.zeros(2)
        self.reset()

    @property
    def factor(self) -> float:
        """What to multiply the learning rate with."""
        return float(self._optimizer.param_groups[0]["lr"]) / self._base_rate

    def add(self, told: Tensor, *, ends_epoch: bool) -> None:
        """Count a step. `told`, (2,): the summed loss of all members' examples, and how many they are."""
        self._sums += told.to("cpu", torch.float32)
        if ends_epoch:
            total, n_examples = self._sums
            self._schedule.step(float(total / n_examples))
            self._sums = torch.zeros(2)

    def reset(self) -> None:
        """Before the first step."""
        assert self._task.plateau is not None
        # An optimizer of its own: what it does to the rate is all that is wanted of it.
        self._optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=self._base_rate)
        made: object = self._task.plateau(self._optimizer)
        if not isinstance(made, ReduceLROnPlateau):
            kind = type(made).__name__
            raise TaskError(f"plateau must make a ReduceLROnPlateau, not {kind}; other schedules are learning_rate_at")
        self._schedule = made
        self._sums = torch.zeros(2)

    def gather(self, section: Tensor) -> None:
        """Write the state into a vector."""
        counts = [float(getattr(self._schedule, name)) for name in _COUNTS]
        section.zero_()
        section[:_N_FLOATS] = torch.tensor([self.factor, self._schedule.best, *counts, *self._sums.tolist()])

    def scatter(self, section: Tensor) -> None:
        """Take it from one."""
        factor, best, *rest = section[:_N_FLOATS].tolist()
        self._optimizer.param_groups[0]["lr"] = self._base_rate * factor
        self._schedule.best = best
        for name, count in zip(_COUNTS, rest, strict=False):
            setattr(self._schedule, name, int(count))
        self._sums = torch.tensor(rest[len(_COUNTS) :])
