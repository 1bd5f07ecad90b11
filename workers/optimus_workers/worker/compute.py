"""What a worker computes in one step: the gradients of its slots, one after the other.

A slot's randomness (its examples, dropout, augmentation by torch) depends on (seed, step, slot) alone, and each slot
weighs in by its share of the batch's examples; so the sum over all slots is the gradient of the mean over the batch
whoever computes which slot.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from optimus_workers.global_batch import GlobalBatch, constant_batch
from optimus_workers.sampler import slot_indices_from
from optimus_workers.task import TrainingTask
from optimus_workers.worker.batches import Batches, Slot
from optimus_workers.worker.device import ComputeOptions, called_from_anywhere
from optimus_workers.worker.figures import checked_figures
from optimus_workers.worker.flat import FlatModel


@dataclass(slots=True)
class Computed:
    """What came of it."""

    loss: float = 0.0
    """Mean over this worker's examples."""
    n_examples: int = 0
    data_seconds: float = 0.0
    compute_seconds: float = 0.0


def slot_seed(seed: int, step: int, slot: int) -> int:
    """The seed of one slot's random numbers, 63 bits."""
    digest = hashlib.sha256(f"{seed}/{step}/{slot}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def sync_slots(
    task: TrainingTask, seed: int, step: int, first_slot: int, end_slot: int, batch: GlobalBatch | None = None
) -> list[Slot]:
    """Slots [first_slot, end_slot) of a step's global batch (None: the task's own); those without an example are left
    out."""
    batch = batch or constant_batch(task.global_batch_size, task.micro_batches)
    slots = []
    for slot in range(first_slot, end_slot):
        first, order = batch.position(step), task.epoch_order
        indices = slot_indices_from(seed, first, slot, batch.slots, batch.size, task.n_examples, order)
        if len(indices):
            slots.append(Slot(indices, len(indices) / batch.size, slot_seed(seed, step, slot)))
    return slots


def async_slots(task: TrainingTask, seed: int, step: int, n_slots: int = 1) -> list[Slot]:
    """The whole mini-batch of a step, in so many pieces; those without an example are left out."""
    size, slots = task.global_batch_size, []
    for slot in range(n_slots):
        indices = slot_indices_from(seed, step * size, slot, n_slots, size, task.n_examples, task.epoch_order)
        if len(indices):
            slots.append(Slot(indices, len(indices) / size, slot_seed(seed, step, slot)))
    return slots


def compute_slots(
    task: TrainingTask,
    flat: FlatModel,
    slots: Sequence[Slot],
    after_each: Callable[[], None],
    *,
    batches: Batches | None = None,
    options: ComputeOptions | None = None,
    last_pass: AbstractContextManager[object] | None = None,
) -> Computed:
    """Leave the weighted sum of the slots' gradients in `flat.push` (on a GPU: on their way there).

    `last_pass`: the context in which gradients become final. Raises what the user's code raises, and what `after_each`
    (called after each slot) does.
    """
    computed = Computed()
    started_at = time.perf_counter()
    batches = batches or Batches(task, flat.device)
    options = options or ComputeOptions()
    flat.begin()
    flat.model.train()
    losses: list[Tensor] = []
    for slot in slots:
        with last_pass if last_pass and slot is slots[-1] else nullcontext():
            losses.append(_compute_slot(task, flat, slot, batches, options, computed))
        after_each()
    # Read after all are queued: a GPU need not wait for this process between two slots.
    totals = [float(loss) * len(slot.indices) for loss, slot in zip(losses, slots, strict=True)]
    computed.n_examples = sum(len(slot.indices) for slot in slots)
    computed.loss = sum(totals) / computed.n_examples if slots else 0.0
    computed.compute_seconds = time.perf_counter() - started_at - computed.data_seconds
    return computed


def _compute_slot(
    task: TrainingTask, flat: FlatModel, slot: Slot, batches: Batches, options: ComputeOptions, computed: Computed
) -> Tensor:
    """Add one slot to the push; its mean loss."""
    started_at = time.perf_counter()
    batch = batches.take(slot)
    computed.data_seconds += time.perf_counter() - started_at
    with torch.no_grad():
        flat.write_buffers()
    with options.forward(flat.device):
        loss = task.loss(flat.model, batch)
    torch.autograd.backward(loss * slot.weight)
    with torch.no_grad():
        flat.add_buffers(slot.weight)
    return loss.detach()


def evaluate(task: TrainingTask, flat: FlatModel) -> dict[str, float]:
    """The user's figures of the model as it is."""
    model: nn.Module = flat.model
    if task.evaluate is None:
        return {}
    flat.staging.begin()
    try:
        with torch.no_grad(), called_from_anywhere(model):
            flat.write_buffers()
            model.eval()
            return checked_figures(task.evaluate(model))
    finally:
        flat.staging.end()
