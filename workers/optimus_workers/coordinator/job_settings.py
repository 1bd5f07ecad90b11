"""What the coordinator takes from the job's specification: its limits, and the global batch of each membership. Pure.

The global batch and the learning rate go with the number of workers:

* Strong scaling: both stay the same.
* Weak scaling: each worker has the base batch, so the global batch of w workers is w times as large, and so is the
  learning rate (Goyal et al. 2017). The rate grows over the warm-up, from the beginning of the job and after each
  change that makes the batch larger; when the batch becomes smaller, it falls at once.
* Elastic batch: the scheduler chooses its size. With the noise scale N = tr(Σ)/|G|² of the gradients
  (`telemetry.gradients`), in examples, a step with B examples is worth

      gain(B) = (1 + N/M) / (1 + N/B)

  steps with the smallest batch M (McCandlish et al. 2018, section 2), as in the scheduler's goodput. The learning rate
  grows linearly with the batch, over a warm-up; for a smaller batch it falls at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from optimus_contract.job import ElasticBatch, JobSpec
from optimus_workers.wire.values import GlobalBatch, TaskProfile, constant_batch

DEFAULT_WARMUP_EPOCHS = 5.0
"""Goyal et al. 2017, section 2.2."""
RECOUNT = 0.05
"""From this relative change of the gain on, steps are counted anew: one reading of the noise errs by more."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What the coordinator takes from the specification: limits, mode, how the batch scales."""

    is_async: bool = False
    is_allreduce: bool = False
    """The workers hold the parameters themselves; there are no servers."""
    is_script: bool = False
    """The workers are agents that run the user's command."""
    max_steps: int | None = None
    max_epochs: float | None = None
    checkpoint_seconds: float = 30.0
    is_weak: bool = False
    """Weak scaling: the global batch grows with the workers."""
    warmup_epochs: float = DEFAULT_WARMUP_EPOCHS
    """Weak scaling: epochs in which the learning rate grows with the batch."""
    elastic: ElasticBatch | None = None
    """The service sets the global batch within these limits; None: the batch is fixed."""
    least_workers: int = 1
    """It does not train with fewer ..."""
    least_servers: int = 0
    """... nor with fewer servers."""

    @property
    def has_servers(self) -> bool:
        return not (self.is_allreduce or self.is_script)

    @classmethod
    def from_spec(cls, spec: JobSpec) -> Self:
        return cls(
            is_async=spec.mode == "async",
            is_allreduce=spec.architecture == "allreduce",
            is_script=spec.architecture == "script",
            max_steps=spec.convergence.max_steps,
            max_epochs=spec.convergence.max_epochs,
            checkpoint_seconds=spec.checkpoint_seconds,
            is_weak=spec.scaling == "weak",
            warmup_epochs=DEFAULT_WARMUP_EPOCHS if spec.warmup_epochs is None else spec.warmup_epochs,
            elastic=spec.elastic_batch,
            least_workers=spec.workers.min,
            least_servers=spec.servers.min if spec.architecture == "ps" else 0,
        )

    def last_step(self, profile: TaskProfile, batch: GlobalBatch | None = None) -> int | None:
        """Steps after which the job is done whatever its loss; None: the job has no such limit.

        `batch`: that of the steps from its first one on; None: always the task's. A step of a larger batch counts as
        the multiple of the base batch that it is, a step of an elastic batch as its gain.
        """
        batch = batch or constant_batch(profile.global_batch_size, profile.micro_batches)
        limits: list[float] = [] if self.max_steps is None else [self.max_steps * profile.global_batch_size]
        if self.max_epochs is not None:
            limits.append(self.max_epochs * profile.n_examples)
        if not limits:
            return None
        left, each = min(limits) - batch.first_example, float(batch.size)
        if batch.counted is not None:
            left, each = min(limits) / batch.base_size - batch.counted, batch.gain
        # Up to the step that completes the last pass; 1e-9 absorbs the rounding of an exact quotient.
        n_steps = math.ceil(left / each - 1e-9)
        return max(1, batch.first_step + max(0, n_steps))


def steps_per_epoch(profile: TaskProfile) -> float:
    """Steps in one pass over the data."""
    return profile.n_examples / profile.global_batch_size


# --- the global batch ------------------------------------------------------------------------------------------------


def batch_at(batches: Sequence[GlobalBatch], step: int, profile: TaskProfile) -> GlobalBatch:
    """The batch of the membership that step `step` belonged to; `batches`: those that led to it, oldest first."""
    found = [batch for batch in batches if batch.first_step <= step]
    return found[-1] if found else constant_batch(profile.global_batch_size, profile.micro_batches)


def next_batch(
    settings: JobSettings,
    profile: TaskProfile,
    n_workers: int,
    step: int,
    batches: Sequence[GlobalBatch],
    wanted: int | None = None,
    noise_scale: float | None = None,
) -> GlobalBatch:
    """The batch of a membership of `n_workers` that goes on from step `step`, after the memberships with `batches`.

    For an elastic batch: the `wanted` size in examples (None: the size before) and the newest `noise_scale`.
    """
    before = batch_at(batches, step, profile)
    if settings.elastic is not None:
        size = wanted or before.size
        return elastic_batch(settings.elastic, n_workers, profile.n_examples, size, step, before, noise_scale)
    position = before.position(step)
    if not settings.is_weak:
        size, slots = profile.global_batch_size, profile.micro_batches
        return GlobalBatch(size, slots, size, step, position)
    present = before.learning_rate_factor(step)
    grows = n_workers > present and settings.warmup_epochs > 0
    return GlobalBatch(
        size=profile.global_batch_size * n_workers,
        slots=profile.micro_batches * n_workers,
        base_size=profile.global_batch_size,
        first_step=step,
        first_example=position,
        from_factor=present if grows else float(n_workers),
        to_factor=float(n_workers),
        warmup_examples=settings.warmup_epochs * profile.n_examples if grows else 0.0,
    )


def elastic_batch(
    limits: ElasticBatch,
    n_workers: int,
    n_examples: int,
    size: int,
    step: int,
    before: GlobalBatch,
    noise: float | None,
) -> GlobalBatch:
    """The batch of `size` examples from `step` on, after steps with the batch `before`.

    `n_examples`: of the data set; `noise`: the newest reading of the noise scale, in examples, if there is one.
    """
    noise_scale = before.noise_scale if noise is None else noise
    present, factor = before.learning_rate_factor(step), size / limits.minimum
    grows = factor > present and limits.warmup_epochs > 0
    return GlobalBatch(
        size=size,
        slots=elastic_micro_batches(limits, n_workers, size),
        base_size=limits.minimum,
        first_step=step,
        first_example=before.position(step),
        from_factor=present if grows else factor,
        to_factor=factor,
        warmup_examples=limits.warmup_epochs * n_examples if grows else 0.0,
        counted=before.counted_at(step),
        gain=gain(size, limits.minimum, noise_scale),
        noise_scale=noise_scale,
    )


def elastic_micro_batches(limits: ElasticBatch, n_workers: int, size: int) -> int:
    """Micro-batches that a batch of `size` examples is cut into: equally many per worker, none above `per_pass`.

    This is what the scheduler assumes (`optimus_models.speed.goodput.cut`): a single worker computes at least two
    of any batch but the smallest, to separate noise from signal.
    """
    examples = -(-size // n_workers)
    passes = -(-examples // limits.per_pass)
    return n_workers * (max(passes, 2) if n_workers == 1 and size > limits.minimum else passes)


def gain(size: int, smallest: int, noise_scale: float) -> float:
    """Steps with the `smallest` batch that one step with `size` examples is worth."""
    return (1.0 + noise_scale / smallest) / (1.0 + noise_scale / size)


def recounted(batch: GlobalBatch, step: int, noise_scale: float) -> GlobalBatch | None:
    """The same batch from `step` on, with the gain at this noise scale; None: the gain is nearly the same."""
    new = gain(batch.size, batch.base_size, noise_scale)
    if abs(new / batch.gain - 1.0) <= RECOUNT:
        return None
    done = batch.position(step) - batch.first_example
    return replace(
        batch,
        first_step=step,
        first_example=batch.position(step),
        from_factor=batch.learning_rate_factor(step),
        warmup_examples=max(batch.warmup_examples - done, 0.0),
        counted=batch.counted_at(step),
        gain=new,
        noise_scale=noise_scale,
    )
