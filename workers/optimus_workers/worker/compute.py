"""What a worker computes in one step: the batches of its slots and their gradients, one after the other."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from optimus_workers.data.prefetching import Key, Prefetcher
from optimus_workers.data.sampler import Indices, slot_indices
from optimus_workers.task.definition import TrainingTask
from optimus_workers.task.user_code import run_user_code
from optimus_workers.telemetry.gradients import ELASTIC_PERIOD
from optimus_workers.wire.messages import Join
from optimus_workers.wire.values import GlobalBatch, constant_batch
from optimus_workers.worker.device import ComputeOptions, to_device
from optimus_workers.worker.flat_model import FlatModel

# --- what a step of the job trains on: the slots of a worker, the learning rate, the place in the data ---------------
# A slot's randomness (its examples, dropout, augmentation by torch) depends on (seed, step, slot) alone, and each slot
# weighs in by its share of the batch's examples; so the sum over all slots is the gradient of the mean over the batch
# whichever worker computes which slot.


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


# --- batches and gradients -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch, and torch's random generators after it was made: the slot's loss goes on from there."""

    batch: Any
    generator: Tensor
    gpu_generator: Tensor | None


class Batches:
    """Batches by slot. Everything happens on the caller's thread, for torch has one random generator for all."""

    def __init__(self, task: TrainingTask, device: torch.device, prefetcher: Prefetcher | None = None) -> None:
        """`prefetcher`: makes batches in another process."""
        self._task = task
        self._prefetcher = prefetcher
        self._device = device
        self._ahead: dict[Key, Fetched] = {}

    def take(self, slot: Slot) -> Any:
        """The slot's batch on the device; torch's generators are as the slot's loss is to find them."""
        fetched = self._ahead.pop(slot.key, None)
        if fetched is None:
            torch.manual_seed(slot.seed)
            made = self._prefetcher.take(slot) if self._prefetcher else None
            if made is None:
                return self._fetch(slot)
            torch.set_rng_state(made.generator)
            return self._moved(made.batch)
        torch.set_rng_state(fetched.generator)
        if fetched.gpu_generator is not None:
            torch.cuda.set_rng_state(fetched.gpu_generator, self._device)
        return fetched.batch

    def expect(self, slots: Iterable[Slot]) -> None:
        """What will be taken next, for the other process to make."""
        if self._prefetcher is not None:
            self._prefetcher.expect(slots)

    def close(self) -> None:
        """End the other process."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def fetch_ahead(self, slots: Sequence[Slot], is_enough: Callable[[], bool]) -> None:
        """Fetch what will be taken next, slot by slot, until that `is_enough`. What else was fetched is dropped.

        Raises what the user's code raises.
        """
        if self._prefetcher is not None:
            return
        wanted = {slot.key for slot in slots}
        self._ahead = {key: fetched for key, fetched in self._ahead.items() if key in wanted}
        for slot in slots:
            if is_enough():
                return
            if slot.key not in self._ahead:
                torch.manual_seed(slot.seed)
                batch = self._fetch(slot)
                self._ahead[slot.key] = Fetched(batch, torch.get_rng_state(), self._gpu_generator())

    def _fetch(self, slot: Slot) -> Any:
        return self._moved(self._task.batch(slot.indices.tolist()))

    def _moved(self, batch: Any) -> Any:
        return batch if self._device.type == "cpu" else to_device(batch, self._device)

    def _gpu_generator(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None


@dataclass(slots=True)
class Computed:
    """What came of it."""

    loss: float = 0.0
    """Mean over this worker's examples."""
    n_examples: int = 0
    data_seconds: float = 0.0
    compute_seconds: float = 0.0


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
