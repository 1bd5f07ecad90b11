"""What a member of an all-reduce job keeps beside what servers know: a torch optimizer's state, a plateau schedule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from optimus_workers.allreduce.torch_state import TravellingOptimizer, n_sections, state_layout
from optimus_workers.errors import TaskError
from optimus_workers.task.definition import TorchOptimizer, TrainingTask
from optimus_workers.task.user_code import run_user_code
from optimus_workers.worker.flat_model import FlatModel

# --- the schedule that falls when the loss of an epoch falls no more -------------------------------------------------
# torch's `ReduceLROnPlateau`, the same on each member of an all-reduce job and after each change of size.
# Each member adds up the loss of all members' examples, so all of them decide alike; what was added up and decided so
# far is a vector of the job's state and travels with it. Its numbers are float32 at all times: a hand-over rounds none.

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

    def add(self, sums: Tensor, *, ends_epoch: bool) -> None:
        """Count a step. `sums`, (2,): the summed loss of all members' examples, and how many they are."""
        self._sums += sums.to("cpu", torch.float32)
        if ends_epoch:
            total, n_examples = self._sums
            self._schedule.step(float(total / n_examples))
            self._sums = torch.zeros(2)

    def reset(self) -> None:
        """Before the first step."""
        assert self._task.plateau is not None
        # An optimizer of its own: only its learning rate is used.
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


class OwnState:
    """The last `n_sections` of a job's sections: first the optimizer's, then the schedule's."""

    def __init__(self, task: TrainingTask, flat: FlatModel) -> None:
        """Raises `TaskError` when the task's optimizer or schedule cannot travel."""
        is_torch = isinstance(task.optimizer, TorchOptimizer)
        layout = state_layout(task, flat) if is_torch else []
        self._optimizer = TravellingOptimizer(task, flat, layout) if is_torch else None
        self._plateau = EpochPlateau(task) if task.plateau is not None else None
        self._n_optimizer = n_sections(layout)

    @property
    def n_sections(self) -> int:
        return self._n_optimizer + (self._plateau is not None)

    @property
    def updates(self) -> bool:
        """Whether the update is its own."""
        return self._optimizer is not None

    @property
    def counts_losses(self) -> bool:
        """Whether it needs the losses of all steps."""
        return self._plateau is not None

    @property
    def rate_factor(self) -> float:
        """What to multiply learning rates with."""
        return 1.0 if self._plateau is None else self._plateau.factor

    def update(self, learning_rate: float) -> None:
        """Update the parameters by the summed gradient. Raises `UserCodeFailed`."""
        optimizer = self._optimizer
        assert optimizer is not None
        run_user_code(lambda: optimizer.step(learning_rate))

    def count_loss(self, told: Tensor, *, ends_epoch: bool) -> None:
        """See `EpochPlateau.add`."""
        assert self._plateau is not None
        self._plateau.add(told, ends_epoch=ends_epoch)

    def reset(self) -> None:
        """Before the first step."""
        if self._optimizer is not None:
            self._optimizer.reset()
        if self._plateau is not None:
            self._plateau.reset()

    def gather(self, sections: Sequence[Tensor]) -> None:
        """Write the state into the last sections."""
        own = sections[len(sections) - self.n_sections :]
        if self._optimizer is not None:
            self._optimizer.gather(own[: self._n_optimizer])
        if self._plateau is not None:
            self._plateau.gather(own[-1])

    def scatter(self, sections: Sequence[Tensor], version: int) -> None:
        """Take it from there; before the first step there is none."""
        if version == 0:
            self.reset()
            return
        own = sections[len(sections) - self.n_sections :]
        if self._optimizer is not None:
            self._optimizer.scatter(own[: self._n_optimizer])
        if self._plateau is not None:
            self._plateau.scatter(own[-1])
