"""What the coordinator needs of the submitted job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from optimus_workers.wire.messages import TaskProfile

DEFAULT_CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The limits and the mode of one job."""

    is_async: bool = False
    is_allreduce: bool = False
    """The workers hold the parameters themselves; there are no servers."""
    max_steps: int | None = None
    max_epochs: float | None = None
    checkpoint_seconds: float = DEFAULT_CHECKPOINT_SECONDS
    max_lead: int | None = None
    """Async: tickets that a worker may be ahead of the slowest one; None: no bound."""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """From a `JobSpecBody`'s JSON."""
        convergence = spec.get("convergence") or {}
        return cls(
            is_async=spec.get("mode") == "async",
            is_allreduce=spec.get("architecture") == "allreduce",
            max_steps=convergence.get("max_steps"),
            max_epochs=convergence.get("max_epochs"),
            max_lead=spec.get("max_lead"),
            checkpoint_seconds=float(spec.get("checkpoint_seconds", DEFAULT_CHECKPOINT_SECONDS)),
        )

    def last_step(self, profile: TaskProfile) -> int | None:
        """Steps after which the job is done whatever its loss; None: no such limit."""
        limits = [] if self.max_steps is None else [self.max_steps]
        if self.max_epochs is not None:
            # Up to the step that completes the last pass; 1e-9 absorbs the rounding of an exact quotient.
            limits.append(max(1, math.ceil(self.max_epochs * steps_per_epoch(profile) - 1e-9)))
        return min(limits, default=None)


def steps_per_epoch(profile: TaskProfile) -> float:
    """Steps in one pass over the data."""
    return profile.n_examples / profile.global_batch_size
