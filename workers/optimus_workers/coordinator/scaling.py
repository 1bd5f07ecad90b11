"""How the global batch and the learning rate go with the number of workers. Pure.

Strong scaling: not at all. Weak scaling: each worker has the base batch, so the global one is w times as large, and so
is the learning rate (Goyal et al. 2017): it grows over the warm-up, from the beginning of the job and after each change
that makes the batch larger; when the batch becomes smaller, it falls at once. Elastic batches: see `elastic`.
"""

from __future__ import annotations

from collections.abc import Sequence

from optimus_workers.coordinator.elastic import elastic_batch
from optimus_workers.coordinator.plan import JobPlan
from optimus_workers.wire.values import GlobalBatch, TaskProfile, constant_batch


def batch_at(batches: Sequence[GlobalBatch], step: int, profile: TaskProfile) -> GlobalBatch:
    """The batch of the membership that step `step` belonged to, of those that led to it, oldest first."""
    found = [batch for batch in batches if batch.first_step <= step]
    return found[-1] if found else constant_batch(profile.global_batch_size, profile.micro_batches)


def next_batch(
    plan: JobPlan,
    profile: TaskProfile,
    n_workers: int,
    step: int,
    batches: Sequence[GlobalBatch],
    wanted: int | None = None,
    noise_scale: float | None = None,
) -> GlobalBatch:
    """The batch of a membership of `n_workers` that goes on from step `step`, with those before it.

    Of an elastic batch also: the `wanted` size (None: the one before) and the newest `noise_scale`.
    """
    before = batch_at(batches, step, profile)
    if plan.elastic is not None:
        size = wanted or before.size
        return elastic_batch(plan.elastic, n_workers, profile.n_examples, size, step, before, noise_scale)
    position = before.position(step)
    if not plan.is_weak:
        size, slots = profile.global_batch_size, profile.micro_batches
        return GlobalBatch(size, slots, size, step, position)
    present = before.learning_rate_factor(step)
    grows = n_workers > present and plan.warmup_epochs > 0
    return GlobalBatch(
        size=profile.global_batch_size * n_workers,
        slots=profile.micro_batches * n_workers,
        base_size=profile.global_batch_size,
        first_step=step,
        first_example=position,
        from_factor=present if grows else float(n_workers),
        to_factor=float(n_workers),
        warmup_examples=plan.warmup_epochs * profile.n_examples if grows else 0.0,
    )
