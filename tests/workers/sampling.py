"""The sampler by steps of one batch size, as tests want it."""

from __future__ import annotations

from optimus_workers.data.sampler import Indices, slot_indices


def slot_of_step(seed: int, step: int, slot: int, n_slots: int, batch_size: int, n_examples: int) -> Indices:
    """The example indices of one slot of step `step`."""
    return slot_indices(seed, step * batch_size, slot, n_slots, batch_size, n_examples)


def step_indices(seed: int, step: int, batch_size: int, n_examples: int) -> Indices:
    """The example indices of the whole batch of step `step`, shape (batch_size,)."""
    return slot_of_step(seed, step, 0, 1, batch_size, n_examples)
