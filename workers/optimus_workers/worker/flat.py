"""The model as one flat vector: parameters first, then floating-point buffers, each part padded to 16 floats.

Parameters that are updated differently (`parameter_groups`) are parts of their own, so that a server updates each with
one call and the result does not depend on where the vector is cut. The model's parameters and their gradients are views
of it, so that pulling and pushing copy nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import nn

from optimus_workers.ranges import Range, aligned
from optimus_workers.wire.memory import private_floats, shareable_floats


class FlatModel:
    """A model whose trainable parameters live in `values`, their gradients in `push`.

    Buffers that are floating-point (running statistics) travel as well: `values` has what a step starts from, `push`
    the weighted mean of what the slots make of it. Frozen parameters and integer buffers stay what the user's
    function made them. Everything is float32.
    """

    def __init__(self, model: nn.Module, groups: Sequence[Sequence[nn.Parameter]] | None = None) -> None:
        """`groups`: the trainable parameters in the order that they are to have; None: one group, in model order."""
        self.model = model.to(torch.float32)
        if groups is None:
            groups = [[parameter for parameter in model.parameters() if parameter.requires_grad]]
        self._buffers = [name for name, buffer in model.named_buffers() if buffer.is_floating_point()]
        sizes = [sum(parameter.numel() for parameter in group) for group in groups]
        ends = list(accumulate(aligned(size) for size in sizes))
        self.group_ranges: tuple[Range, ...] = tuple(pairwise([0, *ends]))
        """Of each group, with its padding."""
        self.n_parameters = sum(sizes)
        self.parameter_floats = ends[-1]
        n_buffer_floats = sum(model.get_buffer(name).numel() for name in self._buffers)
        self.total_floats = self.parameter_floats + aligned(n_buffer_floats)
        self.values = private_floats(self.total_floats)
        self.push_memory = shareable_floats(self.total_floats)
        self.push = self.push_memory.floats
        for group, (first, _) in zip(groups, self.group_ranges, strict=True):
            self._bind(group, first)
        self.read_buffers()

    def _bind(self, parameters: Iterable[nn.Parameter], start: int) -> None:
        for parameter in parameters:
            end = start + parameter.numel()
            view = self.values[start:end].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.push[start:end].view(parameter.shape)
            start = end

    def begin(self) -> None:
        """Forget the last step's push."""
        self.push.zero_()

    def write_buffers(self) -> None:
        """Give the model the buffers of `values`: every slot starts from the same ones."""
        start = self.parameter_floats
        for name in self._buffers:
            buffer = self.model.get_buffer(name)
            buffer.copy_(self.values[start : start + buffer.numel()].view(buffer.shape))
            start += buffer.numel()

    def add_buffers(self, weight: float) -> None:
        """Add what a slot made of the buffers to the push, with the slot's share of the batch."""
        start = self.parameter_floats
        for name in self._buffers:
            buffer = self.model.get_buffer(name)
            self.push[start : start + buffer.numel()].add_(buffer.detach().reshape(-1), alpha=weight)
            start += buffer.numel()

    def read_buffers(self) -> None:
        """Take the model's buffers into `values`."""
        start = self.parameter_floats
        for name in self._buffers:
            buffer = self.model.get_buffer(name)
            self.values[start : start + buffer.numel()] = buffer.detach().reshape(-1)
            start += buffer.numel()
