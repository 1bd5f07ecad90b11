"""The sum of all members' gradients, bucket by bucket during the backward pass: torch's DistributedDataParallel.

DDP averages; here each member's gradients are weighted by its share of the batch already, so they are to be summed.
`StepParts` measures how large the parts of one step's gradient are, for the estimate of its noise.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from enum import StrEnum
from typing import Any

import torch
import torch._dynamo  # DDP loads it when the first one is made, which takes seconds: not while all members wait
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from optimus_workers.task.definition import checked_loss
from optimus_workers.worker.compute import MicroBatch

Future = torch.futures.Future[Tensor]
Hook = Callable[[GradBucket], Future]

_SYNCS_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")  # torch 2.13 has renamed it
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
)
POWERSGD_RANK = 4
POWERSGD_FIRST_STEP = 20
"""Steps of a membership before it compresses: torch's advice, for gradients change fastest at the beginning."""


class GroupCompression(StrEnum):
    """How gradients travel among the members."""

    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"
    """Low-rank approximation of each matrix with error feedback (Vogels et al. 2019)."""


class SharedGradients:
    """The model inside of DDP, for one membership epoch.

    `loss` in place of the task's own makes a micro-batch's gradients; those of the last micro-batch of a step begin to
    travel while they are made, together with what the micro-batches before have accumulated.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        compression: GroupCompression,
        on_ready: Callable[[], None],
        guard: Callable[[Future], Future],
    ) -> None:
        """`on_ready` is called when all of a step's gradients are made and the rest is up to the network; `guard` gives
        what is waited for in the place of a bucket's sum."""
        self._on_ready = on_ready
        self._guard = guard
        self._n_left = 0
        self.ready_at = 0.0
        """When the gradients of the step were complete here, `time.perf_counter`."""
        self._squares: list[Tensor] | None = None
        """|gradient|² of this member's buckets, in a step that is measured."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._hook = make_hook(compression)
        options: dict[str, Any] = {"init_sync": False, "gradient_as_bucket_view": False, _SYNCS_BUFFERS: False}
        self._ddp = DistributedDataParallel(_Loss(model, loss, parameters), **options)
        self._ddp.register_comm_hook(None, lambda _, bucket: self._bucket_is_ready(bucket))

    def begin(self, n_micro_batches: int, *, measures: bool = False) -> None:
        """A step of so many micro-batches begins; `measures`: `local_square` is asked for afterwards."""
        self._n_left = n_micro_batches
        self._squares = [] if measures else None

    def local_square(self) -> float:
        """|the sum of this member's own micro-batches' gradients|² of the step at hand."""
        return sum(float(square) for square in self._squares or ())

    def loss(self, _: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a micro-batch."""
        self._n_left -= 1
        with self._ddp.no_sync() if self._n_left else nullcontext():
            value: Tensor = self._ddp(batch)
        return value

    def take_part(self) -> None:
        """For a member without a micro-batch: add nothing to the sum of the others."""
        torch.autograd.backward(self._ddp(None))

    def _bucket_is_ready(self, bucket: GradBucket) -> Future:
        if bucket.is_last():
            self.ready_at = time.perf_counter()
            self._on_ready()
        if self._squares is not None:
            own = bucket.buffer()
            self._squares.append(torch.dot(own, own))  # before the sum is written there
        return self._guard(self._hook(bucket))

    def close(self) -> None:
        """Leave the model as it was."""
        self._ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]


class _Loss(nn.Module):
    """The loss as DDP wants it: the output of a module's forward pass, in which every parameter takes part."""

    def __init__(
        self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], parameters: list[nn.Parameter]
    ) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._parameters_to_touch = parameters

    def forward(self, batch: Any) -> Tensor:
        if batch is None:
            loss = torch.zeros((), requires_grad=True, device=self._parameters_to_touch[0].device)
        else:
            loss = checked_loss(self._loss(self.model, batch))
        touched: Tensor = _Touch.apply(loss, *self._parameters_to_touch)  # type: ignore[no-untyped-call]
        return touched


class _Touch(torch.autograd.Function):
    """Hands the loss through; the parameters get no gradient from it, but DDP sees that backward is done with them.

    Otherwise a parameter that a loss does not depend on would leave the others waiting.
    """

    @staticmethod
    def forward(context: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        context.n_parameters = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (gradient, *[None] * context.n_parameters)


def make_hook(compression: GroupCompression) -> Hook:
    """What sums one bucket over all members."""
    match compression:
        case GroupCompression.NONE:
            return _sum
        case GroupCompression.FP16:
            return lambda bucket: _undivided(fp16_compress_hook(_world(), bucket))
        case GroupCompression.BF16:
            return lambda bucket: _undivided(bf16_compress_hook(_world(), bucket))
        case GroupCompression.POWERSGD:
            state = PowerSGDState(
                _world(), matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_FIRST_STEP
            )
            return lambda bucket: _undivided(powerSGD_hook(state, bucket))


def _world() -> ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "gradients are shared within an open group"
    return group


def _sum(bucket: GradBucket) -> Future:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: Future = work.get_future().then(lambda future: future.value()[0])
    return summed


def _undivided(mean: Future) -> Future:
    """torch's hooks divide by the number of members."""
    return mean.then(lambda future: future.value().mul_(dist.get_world_size()))


# --- how large the parts of a step's gradient are --------------------------------------------------------------------


class StepParts:
    """How large the parts of one step's gradient are, of one worker (`telemetry.gradients` estimates the noise).

    The parts are the shares of the members; of a worker alone, its micro-batches. All of them count: of few examples a
    single one may have nearly all of the gradient, and the part that it falls into would decide what is measured.
    """

    def __init__(self, micro_batches: Sequence[MicroBatch]) -> None:
        self._micro_batches = micro_batches
        self._n_done = 0
        self._before: Tensor | None = None
        self.sums = torch.zeros(3, dtype=torch.float64)
        """Over the parts: |mean gradient|², 1 / examples, 1."""

    def micro_batch_done(self, gradients: Tensor) -> None:
        """The next micro-batch is a part: `gradients` is the weighted sum up to it."""
        own = gradients if self._before is None else gradients - self._before
        micro_batch = self._micro_batches[self._n_done]
        self._add(float(torch.dot(own, own)), micro_batch.weight, len(micro_batch.indices))
        self._n_done += 1
        if self._n_done < len(self._micro_batches):
            self._before = gradients.clone()

    def share_done(self, square: float) -> None:
        """All micro-batches are one part, whose weighted gradient has this square; no micro-batch: no part."""
        if self._micro_batches:
            n_examples = sum(len(micro_batch.indices) for micro_batch in self._micro_batches)
            self._add(square, sum(micro_batch.weight for micro_batch in self._micro_batches), n_examples)

    def _add(self, square: float, weight: float, n_examples: int) -> None:
        self.sums += torch.tensor([square / weight**2, 1.0 / n_examples, 1.0], dtype=torch.float64)
