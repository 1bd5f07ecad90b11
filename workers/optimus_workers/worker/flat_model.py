"""The model as one flat vector: parameters first, then floating-point buffers, each part padded to 16 floats.

Parameters that are updated differently (`parameter_groups`) are parts of their own, so that a server updates each with
one call and the result does not depend on where the vector is cut. The model's parameters and their gradients are views
of it, so that pulling and pushing copy nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from optimus_workers.task.definition import OptimizerSpec, TorchOptimizer, TrainingTask
from optimus_workers.task.parameter_groups import parameter_groups
from optimus_workers.task.user_code import run_user_code
from optimus_workers.wire.memory import private_floats, shareable_floats
from optimus_workers.wire.norms import block_squares, clip_coefficient
from optimus_workers.wire.ranges import Range, aligned
from optimus_workers.wire.values import TaskProfile, UpdateGroup, UpdateRule
from optimus_workers.worker.staging import DirectStaging, Staging


class FlatModel:
    """A model whose trainable parameters live in `values`, their gradients in `push`.

    Buffers that are floating-point (running statistics) travel as well: `values` has what a step starts from, `push`
    the weighted mean of what the micro-batches make of it. Frozen parameters and integer buffers stay what the user's
    function made them. Everything is float32.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Sequence[nn.Parameter]] | None = None,
        staging: Callable[[Tensor, Tensor], Staging] = DirectStaging,
    ) -> None:
        """`groups`: the trainable parameters in the order that they are to have; None: one group, in model order.

        `staging`: makes of the two vectors those that the model computes in.
        """
        self.model = model.to(torch.float32)
        if groups is None:
            groups = [[parameter for parameter in model.parameters() if parameter.requires_grad]]
        self._buffers = [name for name, buffer in model.named_buffers() if buffer.is_floating_point()]
        sizes = [sum(parameter.numel() for parameter in group) for group in groups]
        ends = list(accumulate(aligned(size) for size in sizes))
        self.group_ranges: tuple[Range, ...] = tuple(pairwise([0, *ends]))
        """The range of each group, with its padding."""
        self.n_parameters = sum(sizes)
        self.parameter_floats = ends[-1]
        n_buffer_floats = sum(model.get_buffer(name).numel() for name in self._buffers)
        self.total_floats = self.parameter_floats + aligned(n_buffer_floats)
        self.values = torch.from_numpy(private_floats(self.total_floats))
        self.push_memory = shareable_floats(self.total_floats)
        self.push = torch.from_numpy(self.push_memory.floats)
        starts = [first for first, _ in self.group_ranges]
        places = {
            id(each): place
            for group, first in zip(groups, starts, strict=True)
            for each, place in _places(group, first)
        }
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        """The parameters that travel, in the order of the model."""
        self.parameter_ranges: tuple[Range, ...] = tuple(places[id(parameter)] for parameter in self.trained)
        """Where each of `trained` lies."""
        self._fill()
        self.staging = staging(self.values, self.push)
        self.values, self.push = self.staging.transferred
        self.device = self.staging.values.device
        self.model.to(self.device)
        self._bind()

    def _fill(self) -> None:
        """Take what the model has into `values`."""
        with torch.no_grad():
            for parameter, (first, end) in zip(self.trained, self.parameter_ranges, strict=True):
                self.values[first:end] = parameter.reshape(-1)
            for name, (first, end) in self._buffer_ranges():
                self.values[first:end] = self.model.get_buffer(name).reshape(-1)

    def _bind(self) -> None:
        """Make the model's parameters and their gradients views of the vectors that it computes in."""
        values, gradients = self.staging.values, self.staging.gradients
        for parameter, (first, end) in zip(self.trained, self.parameter_ranges, strict=True):
            parameter.data = values[first:end].view(parameter.shape)
            parameter.grad = gradients[first:end].view(parameter.shape)

    def _buffer_ranges(self) -> Iterator[tuple[str, Range]]:
        first = self.parameter_floats
        for name in self._buffers:
            end = first + self.model.get_buffer(name).numel()
            yield name, (first, end)
            first = end

    def begin(self) -> None:
        """Forget the last step's push, and compute with the parameters that are here."""
        self.staging.begin()
        self.staging.gradients.zero_()

    def write_buffers(self) -> None:
        """Give the model the buffers of `values`: every micro-batch starts from the same ones."""
        for name, (first, end) in self._buffer_ranges():
            buffer = self.model.get_buffer(name)
            buffer.copy_(self.staging.values[first:end].view(buffer.shape))

    def add_buffers(self, weight: float) -> None:
        """Add what a micro-batch made of the buffers to the push, with the micro-batch's share of the batch."""
        for name, (first, end) in self._buffer_ranges():
            self.staging.gradients[first:end].add_(self.model.get_buffer(name).detach().reshape(-1), alpha=weight)


def _places(parameters: Iterable[nn.Parameter], first: int) -> Iterator[tuple[nn.Parameter, Range]]:
    """Each parameter, and its range where they lie one behind the other from `first` on."""
    for parameter in parameters:
        yield parameter, (first, first + parameter.numel())
        first += parameter.numel()


# --- what coordinator and servers must know of a task ----------------------------------------------------------------


def make_flat(
    task: TrainingTask, model: nn.Module, staging: Callable[[Tensor, Tensor], Staging] = DirectStaging
) -> tuple[FlatModel, tuple[UpdateGroup, ...]]:
    """The model as one vector, group by group, and how each group is updated (none: all alike)."""
    groups = parameter_groups(task, model)
    flat = FlatModel(model, [group.parameters for group in groups], staging)
    updates = tuple(
        UpdateGroup(first, end, group.learning_rate_scale, group.weight_decay)
        for group, (first, end) in zip(groups, flat.group_ranges, strict=True)
    )
    is_plain = len(groups) == 1 and (1.0, float(task.optimizer.weight_decay)) == (
        groups[0].learning_rate_scale,
        groups[0].weight_decay,
    )
    return flat, () if is_plain else updates


def task_profile(
    task: TrainingTask,
    flat: FlatModel,
    groups: tuple[UpdateGroup, ...] = (),
    gradient_period: int = 0,
    extra_sections: int = 0,
) -> TaskProfile:
    """Raises `UserCodeFailed` when the data set has no length."""
    rule = replace(update_rule(task.optimizer), groups=groups, extra_sections=extra_sections)
    return TaskProfile(
        n_parameters=flat.n_parameters,
        parameter_floats=flat.parameter_floats,
        total_floats=flat.total_floats,
        n_examples=run_user_code(lambda: task.n_examples),
        global_batch_size=task.global_batch_size,
        micro_batches=task.micro_batches,
        update=rule,
        gradient_period=gradient_period,
    )


def update_rule(optimizer: OptimizerSpec | TorchOptimizer) -> UpdateRule:
    """As values. Of torch's optimizers only their members know what they do (`allreduce.own_state`)."""
    limit = None if optimizer.max_gradient_norm is None else float(optimizer.max_gradient_norm)
    if isinstance(optimizer, TorchOptimizer):
        return UpdateRule("torch", 0.0, False, 0.0, (0.0, 0.0), 0.0, max_gradient_norm=limit)
    return UpdateRule(
        kind=optimizer.kind,
        momentum=float(optimizer.momentum),
        nesterov=bool(optimizer.nesterov),
        weight_decay=float(optimizer.weight_decay),
        betas=(float(optimizer.betas[0]), float(optimizer.betas[1])),
        eps=float(optimizer.eps),
        max_gradient_norm=limit,
    )


# --- clipping --------------------------------------------------------------------------------------------------------


def clip(gradient: Tensor, max_norm: float, block_floats: int) -> None:
    """Multiply a whole gradient (n,), in place, so that its norm is at most `max_norm`."""
    if gradient.device.type == "cpu":
        squares = block_squares(gradient.numpy(), block_floats).tolist()
    else:
        squares = [square_on_device(gradient)]
    coefficient = clip_coefficient(squares, max_norm)
    if coefficient != 1.0:
        gradient.mul_(coefficient)


def square_on_device(gradient: Tensor) -> float:
    """|gradient|², in double precision, computed where the gradient is: nothing is copied from a GPU but the sum."""
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2


# --- export ----------------------------------------------------------------------------------------------------------

MODEL_NAME = "model.safetensors"


def export_model(flat: FlatModel, job_directory: Path) -> Path:
    """Write the model's `state_dict` with its parameters and buffers as they are. Raises `OSError`."""
    path = job_directory / MODEL_NAME
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    # Copies: the parameters are views of one vector, and the format wants each tensor to have its own memory.
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in flat.model.state_dict().items()}
    try:
        save_file(state, temporary)
    except SafetensorError as error:
        raise OSError(f"cannot write {path.name}: {error}") from error
    temporary.replace(path)
    return path
