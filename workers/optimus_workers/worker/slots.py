"""What a step of the job trains on: the slots of a worker, the learning rate, the place in the data.

A slot's randomness (its examples, dropout, augmentation by torch) depends on (seed, step, slot) alone, and each slot
weighs in by its share of the batch's examples; so the sum over all slots is the gradient of the mean over the batch
whichever worker computes which slot.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from optimus_workers.data.prefetching import Key
from optimus_workers.data.sampler import Indices, slot_indices
from optimus_workers.task.definition import TrainingTask
from optimus_workers.task.user_code import run_user_code
from optimus_workers.telemetry.gradients import ELASTIC_PERIOD
from optimus_workers.wire.messages import Join
from optimus_workers.wire.values import GlobalBatch, constant_batch


@dataclass(frozen=True, slots=True)
class Slot:
    """One piece of a step's work: its examples, its share of the batch, the seed of its randomness."""

    indices: Indices
    weight: float
    seed: int

    @property
    def key(self) -> Key:
        """No other slot has it: the same one of a larger batch has the same seed and other examples."""
        return self.seed, self.indices.tobytes()


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
        indices = slot_indices(seed, first, slot, batch.slots, batch.size, task.n_examples, order)
        if len(indices):
            slots.append(Slot(indices, len(indices) / batch.size, slot_seed(seed, step, slot)))
    return slots


def async_slots(task: TrainingTask, seed: int, step: int, n_slots: int = 1) -> list[Slot]:
    """The whole mini-batch of a step, in so many pieces; those without an example are left out."""
    size, slots = task.global_batch_size, []
    for slot in range(n_slots):
        indices = slot_indices(seed, step * size, slot, n_slots, size, task.n_examples, task.epoch_order)
        if len(indices):
            slots.append(Slot(indices, len(indices) / size, slot_seed(seed, step, slot)))
    return slots


class Steps:
    """The steps of one job; what differs between memberships is in their `Join`."""

    def __init__(self, task: TrainingTask, seed: int) -> None:
        self._task = task
        self._seed = seed

    def batch(self, join: Join) -> GlobalBatch:
        """What each step of this membership trains on."""
        return join.batch or constant_batch(self._task.global_batch_size, self._task.micro_batches)

    def slots(self, join: Join, step: int, *, in_parts: bool = False) -> list[Slot]:
        """What this worker computes in a step. Where the noise of an elastic batch's gradient is measured, it is two
        pieces at least: one does not show it. `in_parts` (async): likewise."""
        if join.is_async:
            return async_slots(self._task, self._seed, step, 2 if in_parts else 1)
        batch = join.batch
        if batch is not None and batch.is_elastic and batch.slots == 1 and step % ELASTIC_PERIOD == 0:
            return sync_slots(self._task, self._seed, step, 0, 2, replace(batch, slots=2))
        return sync_slots(self._task, self._seed, step, join.first_slot, join.end_slot, join.batch)

    def slots_ahead(self, join: Join, step: int, slots: list[Slot]) -> list[Slot]:
        """`slots` of this step and, as far as they are known, those of the next ones, as many as are made ahead."""
        found = list(slots)
        while slots and not join.is_async and len(found) < len(slots) + self._task.prefetch:
            step += 1
            found += self.slots(join, step)
        return found

    def data_epoch(self, join: Join, steps: int) -> float:
        """Passes over the data after so many steps of the job."""
        return self.batch(join).position(steps) / self._task.n_examples

    def learning_rate(self, join: Join, step: int) -> float:
        """The learning rate of a step, with the batch's factor. Raises `UserCodeFailed`."""
        batch = self.batch(join)
        rate = run_user_code(lambda: self._task.learning_rate(batch.reported_step(step), batch.reported_examples(step)))
        return rate * batch.learning_rate_factor(step)
