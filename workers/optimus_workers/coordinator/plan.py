"""What the coordinator needs of the submitted job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from optimus_workers.coordinator.elastic import ElasticBounds
from optimus_workers.wire.values import GlobalBatch, TaskProfile, constant_batch

DEFAULT_CHECKPOINT_SECONDS = 30.0
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
    checkpoint_seconds: float = DEFAULT_CHECKPOINT_SECONDS
    is_weak: bool = False
    """Weak scaling: the global batch grows with the workers."""
    warmup_epochs: float = DEFAULT_WARMUP_EPOCHS
    """Weak scaling: how long the learning rate takes to grow with the batch."""
    elastic: ElasticBounds | None = None
    """The global batch is set by the service, within these; None: it is not."""
    max_lead: int | None = None
    """Async: tickets that a worker may be ahead of the slowest one; None: no bound."""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """From a `JobSpec`'s JSON."""
        convergence = spec.get("convergence") or {}
        return cls(
            is_async=spec.get("mode") == "async",
            is_allreduce=spec.get("architecture") == "allreduce",
            max_steps=convergence.get("max_steps"),
            max_epochs=convergence.get("max_epochs"),
            is_weak=spec.get("scaling") == "weak",
            warmup_epochs=_given(spec, "warmup_epochs", DEFAULT_WARMUP_EPOCHS),
            elastic=ElasticBounds.from_spec(spec),
            max_lead=spec.get("max_lead"),
            checkpoint_seconds=float(spec.get("checkpoint_seconds", DEFAULT_CHECKPOINT_SECONDS)),
        )

    def last_step(self, profile: TaskProfile, batch: GlobalBatch | None = None) -> int | None:
        """Steps after which the job is done whatever its loss; None: no such limit. `batch`: of the steps from its
        first one on (None: always the task's). A step of a larger batch counts as so many of the base batch, of an
        elastic one as its gain."""
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


def _given(spec: Mapping[str, Any], name: str, default: float) -> float:
    value = spec.get(name)
    return default if value is None else float(value)


def steps_per_epoch(profile: TaskProfile) -> float:
    """Steps in one pass over the data."""
    return profile.n_examples / profile.global_batch_size
