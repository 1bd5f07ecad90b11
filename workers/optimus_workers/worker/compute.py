"""What a worker computes in one step: the batches of its slots and their gradients, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optimus_workers.data.prefetching import Key, Prefetcher
from optimus_workers.task.definition import TrainingTask
from optimus_workers.worker.device import ComputeOptions, to_device
from optimus_workers.worker.flat_model import FlatModel
from optimus_workers.worker.slots import Slot


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
