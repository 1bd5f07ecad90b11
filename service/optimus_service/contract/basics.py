"""What bodies have in common: limits, numbers, and strictness."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MAX_TASKS = 1024
"""Workers (or servers) that one job may ask for."""
MAX_SAMPLES_PER_POST = 1000
MAX_BODY_BYTES = 1_048_576
MAX_COUNT = 2**53
"""Largest step, byte count and the like: beyond it a JSON reader with doubles would round."""
MAX_POSIX_SECONDS = 1e11
"""Latest moment that is accepted, in the year 5138: within what dates can say."""
MAX_SPEC_BYTES = 100_000
"""A job's specification as JSON: tasks get it in one environment variable, which Linux limits to 128 KiB."""


class Body(BaseModel):
    """Base of all bodies: unknown fields are errors, values are immutable and of the type that is named.

    Strict: `"3"` and `true` are no numbers. Read leniently, `max: true` would silently be a job of one worker.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PosixSeconds = Annotated[float, Field(ge=0, le=MAX_POSIX_SECONDS, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, le=MAX_POSIX_SECONDS, allow_inf_nan=False)]
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def _named_number(value: object) -> object:
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


Measured = Annotated[
    float, BeforeValidator(_named_number, json_schema_input_type=float | Literal["NaN", "Infinity", "-Infinity"])
]
"""A measured number, which may be NaN or infinite."""
MetricName = Annotated[str, Field(min_length=1, max_length=100)]
MAX_METRICS = 20
"""Figures of one evaluation."""
TaskName = Annotated[str, Field(min_length=1, max_length=253)]
