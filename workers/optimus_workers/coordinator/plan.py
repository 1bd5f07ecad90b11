"""What the coordinator takes from the job's specification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from optimus_contract.job import ElasticBatch, JobSpec
from optimus_workers.wire.values import GlobalBatch, TaskProfile, constant_batch

DEFAULT_WARMUP_EPOCHS = 5.0
"""Goyal et al. 2017, section 2.2."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The limits and the mode of one job."""

    is_async: bool = False
    is_allreduce: bool = False
    """The workers hold the parameters themselves; there are no servers."""
    max_steps: int | None = None
    max_epochs: float | None = None
    checkpoint_seconds: float = 30.0
    is_weak: bool = False
    """Weak scaling: the global batch grows with the workers."""
    warmup_epochs: float = DEFAULT_WARMUP_EPOCHS
    """Weak scaling: epochs in which the learning rate grows with the batch."""
    elastic: ElasticBatch | None = None
    """The service sets the global batch within these limits; None: the batch is fixed."""

    @classmethod
    def from_spec(cls, spec: JobSpec) -> Self:
        return cls(
            is_async=spec.mode == "async",
            is_allreduce=spec.architecture == "allreduce",
            max_steps=spec.convergence.max_steps,
            max_epochs=spec.convergence.max_epochs,
            checkpoint_seconds=spec.checkpoint_seconds,
            is_weak=spec.scaling == "weak",
            warmup_epochs=DEFAULT_WARMUP_EPOCHS if spec.warmup_epochs is None else spec.warmup_epochs,
            elastic=spec.elastic_batch,
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
