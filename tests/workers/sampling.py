"""The sampler by steps of one batch size, as tests want it."""

from __future__ import annotations

from optimus_workers.data.sampler import Indices, micro_batch_indices


def micro_batch_of_step(
    seed: int, step: int, number: int, n_micro_batches: int, batch_size: int, n_examples: int
) -> Indices:
    """The example indices of one micro-batch of step `step`."""
    return micro_batch_indices(seed, step * batch_size, number, n_micro_batches, batch_size, n_examples)


def step_indices(seed: int, step: int, batch_size: int, n_examples: int) -> Indices:
    """The example indices of the whole batch of step `step`, shape (batch_size,)."""
    return micro_batch_of_step(seed, step, 0, 1, batch_size, n_examples)
