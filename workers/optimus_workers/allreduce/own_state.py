"""What a member of an all-reduce job keeps beside what servers know: a torch optimizer's state, a plateau schedule."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from optimus_workers.allreduce.plateau import EpochPlateau
from optimus_workers.allreduce.torch_state import TravellingOptimizer, n_sections, state_layout
from optimus_workers.task.definition import TrainingTask
from optimus_workers.task.torch_optimizer import TorchOptimizer
from optimus_workers.task.user_code import run_user_code
from optimus_workers.worker.flat_model import FlatModel


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
        """Whether it is to be told the losses of all steps."""
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
