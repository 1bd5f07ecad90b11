"""What a worker computes in one step: its micro-batches and their gradients, one after the other."""

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
from optimus_workers.data.sampler import Indices, micro_batch_indices
from optimus_workers.data.seeding import seed_torch
from optimus_workers.task.definition import TrainingTask, checked_loss
from optimus_workers.task.user_code import run_user_code
from optimus_workers.telemetry.gradients import ELASTIC_PERIOD
from optimus_workers.wire.messages import Join
from optimus_workers.wire.values import GlobalBatch, constant_batch
from optimus_workers.worker.device import ComputeOptions, to_device
from optimus_workers.worker.flat_model import FlatModel

# --- what a step of the job trains on: the micro-batches of a worker, the learning rate, the place in the data -------
# The randomness of a micro-batch (its examples, dropout, augmentation by torch) depends on the job's seed, the step and
# its number alone, and it weighs in by its share of the batch's examples; so the sum over all of them is the gradient
# of the mean over the batch, whichever worker computes which.


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One piece of a step's work: its examples, its share of the batch, the seed of its randomness."""

    indices: Indices
    weight: float
    seed: int

    @property
    def key(self) -> Key:
        """No other micro-batch has it: the same one of a larger batch has the same seed and other examples."""
        return self.seed, self.indices.tobytes()


def micro_batch_seed(seed: int, step: int, number: int) -> int:
    """The seed of one micro-batch's random numbers, 63 bits."""
    digest = hashlib.sha256(f"{seed}/{step}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def sync_micro_batches(
    task: TrainingTask, seed: int, step: int, begin: int, end: int, batch: GlobalBatch | None = None
) -> list[MicroBatch]:
    """Micro-batches [begin, end) of a step's global batch (None: the task's own); those without an example are left
    out."""
    batch = batch or constant_batch(task.global_batch_size, task.micro_batches)
    found = []
    for number in range(begin, end):
        first, order = batch.position(step), task.epoch_order
        indices = micro_batch_indices(seed, first, number, batch.slots, batch.size, task.n_examples, order)
        if len(indices):
            found.append(MicroBatch(indices, len(indices) / batch.size, micro_batch_seed(seed, step, number)))
    return found


def async_micro_batches(task: TrainingTask, seed: int, step: int, n_micro_batches: int = 1) -> list[MicroBatch]:
    """The whole mini-batch of a step, in so many pieces; those without an example are left out."""
    size, found = task.global_batch_size, []
    for number in range(n_micro_batches):
        indices = micro_batch_indices(
            seed, step * size, number, n_micro_batches, size, task.n_examples, task.epoch_order
        )
        if len(indices):
            found.append(MicroBatch(indices, len(indices) / size, micro_batch_seed(seed, step, number)))
    return found


class Steps:
    """The steps of one job; what differs between memberships is in their `Join`."""

    def __init__(self, task: TrainingTask, seed: int) -> None:
        self._task = task
        self._seed = seed

    def batch(self, join: Join) -> GlobalBatch:
        """What each step of this membership trains on."""
        return join.batch or constant_batch(self._task.global_batch_size, self._task.micro_batches)

    def micro_batches(self, join: Join, step: int, *, in_parts: bool = False) -> list[MicroBatch]:
        """What this worker computes in a step. Where the noise of an elastic batch's gradient is measured, it is two
        pieces at least: one does not show it. `in_parts` (async): likewise."""
        if join.is_async:
            return async_micro_batches(self._task, self._seed, step, 2 if in_parts else 1)
        batch = join.batch
        if batch is not None and batch.is_elastic and batch.slots == 1 and step % ELASTIC_PERIOD == 0:
            return sync_micro_batches(self._task, self._seed, step, 0, 2, replace(batch, slots=2))
        return sync_micro_batches(self._task, self._seed, step, join.first_slot, join.end_slot, join.batch)

    def micro_batches_ahead(self, join: Join, step: int, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """`micro_batches` of this step and, as far as they are known, as many of the next ones as are made ahead."""
        found = list(micro_batches)
        while micro_batches and not join.is_async and len(found) < len(micro_batches) + self._task.prefetch:
            step += 1
            found += self.micro_batches(join, step)
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
    """A batch, and torch's random generators after it was made: its loss goes on from there."""

    batch: Any
    generator: Tensor
    gpu_generator: Tensor | None


class Batches:
    """Batches by micro-batch. Everything happens on the caller's thread, for torch has one random generator for all."""

    def __init__(self, task: TrainingTask, device: torch.device, prefetcher: Prefetcher | None = None) -> None:
        """`prefetcher`: makes batches in another process."""
        self._task = task
        self._prefetcher = prefetcher
        self._device = device
        self._ahead: dict[Key, Fetched] = {}

    def take(self, micro_batch: MicroBatch) -> Any:
        """The micro-batch on the device; torch's generators are as its loss is to find them."""
        fetched = self._ahead.pop(micro_batch.key, None)
        if fetched is None:
            seed_torch(micro_batch.seed)
            made = self._prefetcher.take(micro_batch) if self._prefetcher else None
            if made is None:
                return self._fetch(micro_batch)
            torch.set_rng_state(made.generator)
            return self._moved(made.batch)
        torch.set_rng_state(fetched.generator)
        if fetched.gpu_generator is not None:
            torch.cuda.set_rng_state(fetched.gpu_generator, self._device)
        return fetched.batch

    def expect(self, micro_batches: Iterable[MicroBatch]) -> None:
        """What will be taken next, for the other process to make."""
        if self._prefetcher is not None:
            self._prefetcher.expect(micro_batches)

    def close(self) -> None:
        """End the other process."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def fetch_ahead(self, micro_batches: Sequence[MicroBatch], is_enough: Callable[[], bool]) -> None:
        """Fetch what will be taken next, micro-batch by micro-batch, until that `is_enough`. What else was fetched is
        dropped.

        Raises what the user's code raises.
        """
        if self._prefetcher is not None:
            return
        wanted = {micro_batch.key for micro_batch in micro_batches}
        self._ahead = {key: fetched for key, fetched in self._ahead.items() if key in wanted}
        for micro_batch in micro_batches:
            if is_enough():
                return
            if micro_batch.key not in self._ahead:
                seed_torch(micro_batch.seed)
                batch = self._fetch(micro_batch)
                self._ahead[micro_batch.key] = Fetched(batch, torch.get_rng_state(), self._gpu_generator())

    def _fetch(self, micro_batch: MicroBatch) -> Any:
        return self._moved(self._task.batch(micro_batch.indices.tolist()))

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


def compute_micro_batches(
    task: TrainingTask,
    flat: FlatModel,
    micro_batches: Sequence[MicroBatch],
    after_each: Callable[[], None],
    *,
    batches: Batches | None = None,
    options: ComputeOptions | None = None,
    last_pass: AbstractContextManager[object] | None = None,
) -> Computed:
    """Leave the weighted sum of the micro-batches' gradients in `flat.push` (on a GPU: on their way there).

    `last_pass`: the context in which gradients become final. Raises what the user's code raises, and what `after_each`
    (called after each micro-batch) does.
    """
    computed = Computed()
    started_at = time.perf_counter()
    batches = batches or Batches(task, flat.device)
    options = options or ComputeOptions()
    flat.begin()
    flat.model.train()
    losses: list[Tensor] = []
    for micro_batch in micro_batches:
        with last_pass if last_pass and micro_batch is micro_batches[-1] else nullcontext():
            losses.append(_compute_micro_batch(task, flat, micro_batch, batches, options, computed))
        after_each()
    # Read after all are queued: a GPU need not wait for this process between two micro-batches.
    totals = [float(loss) * len(micro_batch.indices) for loss, micro_batch in zip(losses, micro_batches, strict=True)]
    computed.n_examples = sum(len(micro_batch.indices) for micro_batch in micro_batches)
    computed.loss = sum(totals) / computed.n_examples if micro_batches else 0.0
    computed.compute_seconds = time.perf_counter() - started_at - computed.data_seconds
    return computed


def _compute_micro_batch(
    task: TrainingTask,
    flat: FlatModel,
    micro_batch: MicroBatch,
    batches: Batches,
    options: ComputeOptions,
    computed: Computed,
) -> Tensor:
    """Add one micro-batch to the push; its mean loss."""
    started_at = time.perf_counter()
    batch = batches.take(micro_batch)
    computed.data_seconds += time.perf_counter() - started_at
    with torch.no_grad():
        flat.write_buffers()
    with options.forward(flat.device):
        loss = checked_loss(task.loss(flat.model, batch))
    torch.autograd.backward(loss * micro_batch.weight)
    with torch.no_grad():
        flat.add_buffers(micro_batch.weight)
    return loss.detach()
