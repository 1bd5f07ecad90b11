"""What the owner of a job with an elastic batch allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from optimus_service.contract.basics import Body

MAX_BATCH = 10**7
"""Examples in a step."""


class ElasticBatchBody(Body):
    """The global batch is chosen by the scheduler, with the number of workers. All sizes are examples."""

    minimum: int = Field(
        ge=1, le=MAX_BATCH, examples=[64], description="the batch it begins with; steps count as steps with this one"
    )
    maximum: int = Field(ge=1, le=MAX_BATCH, examples=[1024])
    per_pass: int = Field(
        ge=1, le=MAX_BATCH, examples=[128], description="what one worker computes at once; more is done in passes"
    )
    most_passes: int = Field(default=16, ge=1, le=64, description="of one worker in one step")
    warmup_epochs: float = Field(
        default=1.0,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="epochs in which the learning rate grows with the batch",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum ({self.minimum}) must not be above maximum ({self.maximum})")
        if self.minimum > self.per_pass * self.most_passes:
            most = self.per_pass * self.most_passes
            raise ValueError(f"one worker computes {most} examples in a step at most: minimum must not be above that")
        return self


def check_elastic(value: ElasticBatchBody, rest: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a job with these other fields (those that are valid) cannot have an elastic batch."""
    if rest.get("architecture") == "ps":
        raise ValueError("an elastic batch is for all-reduce jobs: say architecture: allreduce, or leave it out")
    if rest.get("mode") == "async":
        raise ValueError("an elastic batch is for mode sync: in mode async each worker has a batch of its own")
    if rest.get("scaling") == "weak":
        raise ValueError("give one of elastic_batch and scaling: weak; both set the batch")
    fixed = rest.get("global_batch_size")
    if fixed is not None and not value.minimum <= fixed <= value.maximum:
        raise ValueError(
            f"global_batch_size ({fixed}) must be from {value.minimum} to {value.maximum}: it is what policies give "
            "that choose no batches; leave it out for the smallest"
        )
