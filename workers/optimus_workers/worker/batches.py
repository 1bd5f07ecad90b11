"""The batches of the slots that a worker computes, some of them fetched while it waits for parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optimus_workers.data.prefetching import Key, Prefetcher
from optimus_workers.sampler import Indices
from optimus_workers.task import TrainingTask
from optimus_workers.worker.device import to_device


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
