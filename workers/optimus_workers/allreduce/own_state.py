"""What a member of an all-reduce job keeps beside what servers know: a torch optimizer's state, a plateau schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from optimus_workers.errors import TaskError
from optimus_workers.task.definition import TorchOptimizer, TrainingTask
from optimus_workers.task.parameter_groups import ParameterGroup, parameter_groups
from optimus_workers.task.user_code import run_user_code
from optimus_workers.wire.ranges import Range
from optimus_workers.worker.flat_model import FlatModel

# --- a torch optimizer whose state travels: between steps it is torch's own, in a hand-over it is flat vectors -------
#
#     optimizer.state[parameter]  {"exp_avg": (37, 8), "exp_avg_sq": (37, 8), "step": ()}
#                                      │ gather                ▲ scatter
#                                      ▼                       │
#     sections (total_floats,)    0: exp_avg at the parameter's range   1: exp_avg_sq   2: step at its first float
#
# Which entries there are is found out by two updates of copies, before training begins.

_EXACT = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool)
"""What float32 holds; whole numbers up to 2^24, which are counts of steps."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that an optimizer keeps for a parameter."""

    name: str
    shape: tuple[int, ...] | None
    """None: a plain number."""
    kind: Any
    """The tensor's type, or that of the number."""
    on_cpu: bool


class TravellingOptimizer:
    """The optimizer of a member of an all-reduce job."""

    def __init__(self, task: TrainingTask, flat: FlatModel, layout: Sequence[Sequence[Entry]]) -> None:
        """`layout`: of each parameter (`state_layout`)."""
        assert isinstance(task.optimizer, TorchOptimizer)
        self._flat = flat
        self._layout = layout
        self._optimizer = made(task.optimizer, parameter_groups(task, flat.model))
        self._scales = [group["lr"] / task.optimizer.learning_rate for group in self._optimizer.param_groups]

    def step(self, learning_rate: float) -> None:
        """Update the parameters by the gradients that are in `flat.push`. Raises what the user's code raises."""
        for group, scale in zip(self._optimizer.param_groups, self._scales, strict=True):
            group["lr"] = learning_rate * scale
        self._optimizer.step()

    def reset(self) -> None:
        """Before the first update."""
        self._optimizer.state.clear()

    def gather(self, sections: Sequence[Tensor]) -> None:
        """Write the state into vectors of shape (total_floats,); what no entry has is 0."""
        for section in sections:
            section.zero_()
        for parameter, place, entries in self._parameters():
            state = self._optimizer.state.get(parameter) or {}
            for section, entry in zip(sections, entries if state else (), strict=False):
                value = torch.as_tensor(state[entry.name]).detach().reshape(-1)
                section[place[0] : place[0] + len(value)].copy_(value)

    def scatter(self, sections: Sequence[Tensor]) -> None:
        """Take the state from such vectors."""
        self.reset()
        for parameter, place, entries in self._parameters():
            self._optimizer.state[parameter] = {
                entry.name: _restored(entry, section, place[0])
                for section, entry in zip(sections, entries, strict=False)
            }

    def _parameters(self) -> Iterator[tuple[nn.Parameter, Range, Sequence[Entry]]]:
        yield from zip(self._flat.trained, self._flat.parameter_ranges, self._layout, strict=True)


def made(optimizer: TorchOptimizer, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
    """The optimizer of these groups."""
    return optimizer.over(
        [
            {"params": list(group.parameters), "lr": optimizer.learning_rate * group.learning_rate_scale}
            | ({"weight_decay": group.weight_decay} if optimizer.decays else {})
            for group in groups
        ]
    )


def state_layout(task: TrainingTask, flat: FlatModel) -> list[list[Entry]]:
    """What the task's optimizer keeps for each of `flat.trained`, found out on copies of the parameters.

    Raises `TaskError` when it keeps what cannot travel, and what the user's code raises.
    """
    assert isinstance(task.optimizer, TorchOptimizer)
    copies = {id(each): nn.Parameter(each.detach().clone()) for each in flat.trained}
    groups = [
        ParameterGroup(
            tuple(copies[id(each)] for each in group.parameters), group.learning_rate_scale, group.weight_decay
        )
        for group in parameter_groups(task, flat.model)
    ]
    optimizer = made(task.optimizer, groups)
    layouts = []
    for _ in range(2):
        for copy in copies.values():
            copy.grad = torch.full_like(copy, 1e-3)
        try:
            optimizer.step()
        except TypeError as error:
            raise TaskError(f"optimizer: {_name(optimizer)} cannot make a step without a closure ({error})") from error
        layouts.append([_entries(optimizer, copies[id(each)]) for each in flat.trained])
    if layouts[0] != layouts[1]:
        raise TaskError(f"optimizer: what {_name(optimizer)} keeps for a parameter changes its form between steps")
    return layouts[0]


def n_sections(layout: Sequence[Sequence[Entry]]) -> int:
    """Vectors that hold such a state."""
    return max((len(entries) for entries in layout), default=0)


def _entries(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> list[Entry]:
    state = optimizer.state.get(parameter) or {}
    return [_entry(optimizer, name, value, parameter) for name, value in state.items() if value is not None]


def _entry(optimizer: torch.optim.Optimizer, name: object, value: object, parameter: nn.Parameter) -> Entry:
    if isinstance(name, str) and isinstance(value, bool | int | float):
        return Entry(name, None, type(value), on_cpu=True)
    fits = isinstance(value, Tensor) and value.numel() <= parameter.numel() and value.dtype in _EXACT
    if not (isinstance(name, str) and fits and isinstance(value, Tensor)):
        kind = f"a tensor {tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TaskError(
            f"optimizer: {_name(optimizer)} keeps {name!r} ({kind}) for a parameter {tuple(parameter.shape)}; what "
            "travels are numbers, and tensors of at most float32 that are no larger than the parameter"
        )
    return Entry(name, tuple(value.shape), value.dtype, on_cpu=value.device.type == "cpu")


def _restored(entry: Entry, section: Tensor, first: int) -> Tensor | float:
    if entry.shape is None:
        number: float = entry.kind(section[first].item())
        return number
    n_numbers = torch.Size(entry.shape).numel()
    found = section[first : first + n_numbers].view(entry.shape)
    return found.to("cpu" if entry.on_cpu else section.device, entry.kind, copy=True)


def _name(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__


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


# --- both together ---------------------------------------------------------------------------------------------------


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

    def count_loss(self, sums: Tensor, *, ends_epoch: bool) -> None:
        """See `EpochPlateau.add`."""
        assert self._plateau is not None
        self._plateau.add(sums, ends_epoch=ends_epoch)

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
