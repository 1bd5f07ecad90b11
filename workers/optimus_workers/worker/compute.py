"""What a worker computes in one step: the gradients of its slots, one after the other.

A slot's randomness (its examples, dropout, augmentation by torch) depends on (seed, step, slot) alone, and each slot
weighs in by its share of the batch's examples; so the sum over all slots is the gradient of the mean over the batch
whoever computes which slot.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from optimus_workers.sampler import Indices, slot_indices, step_indices
from optimus_workers.task import TrainingTask
from optimus_workers.worker.flat import FlatModel


@dataclass(frozen=True, slots=True)
class Slot:
    """One piece of a step's work: its examples, its share of the batch, the seed of its randomness."""

    indices: Indices
    weight: float
    seed: int


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


def sync_slots(task: TrainingTask, seed: int, step: int, first_slot: int, end_slot: int) -> list[Slot]:
    """Slots [first_slot, end_slot) of a step's global batch; those without an example are left out."""
    size = task.global_batch_size
    slots = []
    for slot in range(first_slot, end_slot):
        indices = slot_indices(seed, step, slot, task.micro_batches, size, task.n_examples)
        if len(indices):
            slots.append(Slot(indices, len(indices) / size, slot_seed(seed, step, slot)))
    return slots


def async_slots(task: TrainingTask, seed: int, step: int) -> list[Slot]:
    """The whole mini-batch of a step in one piece."""
    indices = step_indices(seed, step, task.global_batch_size, task.n_examples)
    return [Slot(indices, 1.0, slot_seed(seed, step, 0))]


def compute_slots(
    task: TrainingTask, flat: FlatModel, slots: Sequence[Slot], after_each: Callable[[], None]
) -> Computed:
    """Leave the weighted sum of the slots' gradients in `flat.push`.

    Raises what the user's code raises, and what `after_each` (called after each slot) does.
    """
    computed = Computed()
    flat.begin()
    flat.model.train()
    total = 0.0
    for slot in slots:
        loss = _compute_slot(task, flat, slot, computed)
        total += loss * len(slot.indices)
        computed.n_examples += len(slot.indices)
        after_each()
    computed.loss = total / computed.n_examples if computed.n_examples else 0.0
    return computed


def _compute_slot(task: TrainingTask, flat: FlatModel, slot: Slot, computed: Computed) -> float:
    """Add one slot to `flat.push`; its mean loss."""
    started_at = time.perf_counter()
    torch.manual_seed(slot.seed)
    batch = task.batch(slot.indices.tolist())
    got_data_at = time.perf_counter()
    with torch.no_grad():
        flat.write_buffers()
    loss = task.loss(flat.model, batch)
    torch.autograd.backward(loss * slot.weight)
    with torch.no_grad():
        flat.add_buffers(slot.weight)
    value = float(loss.detach())
    computed.data_seconds += got_data_at - started_at
    computed.compute_seconds += time.perf_counter() - got_data_at
    return value


def evaluate(task: TrainingTask, flat: FlatModel) -> dict[str, float]:
    """The user's figures of the model as it is."""
    model: nn.Module = flat.model
    if task.evaluate is None:
        return {}
    with torch.no_grad():
        flat.write_buffers()
        model.eval()
        return {name: float(value) for name, value in task.evaluate(model).items()}
