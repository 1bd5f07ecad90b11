"""A torch optimizer whose state travels: between steps it is torch's own, in a hand-over it is flat vectors.

::

    optimizer.state[parameter]  {"exp_avg": (37, 8), "exp_avg_sq": (37, 8), "step": ()}
                                     │ gather                ▲ scatter
                                     ▼                       │
    sections (total_floats,)    0: exp_avg at the parameter's range   1: exp_avg_sq   2: step at the range's first float

Which entries there are is found out by two updates of copies, before training begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from optimus_workers.errors import TaskError
from optimus_workers.task.definition import TorchOptimizer, TrainingTask
from optimus_workers.task.parameter_groups import ParameterGroup, parameter_groups
from optimus_workers.wire.ranges import Range
from optimus_workers.worker.flat_model import FlatModel

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
