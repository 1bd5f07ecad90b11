"""The numbers that a job of a trace may have: those of a submitted job. Beyond them a replay would hardly ever end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from optimus_contract.job import MAX_BATCH
from optimus_contract.limits import MAX_POSIX_SECONDS, MAX_SECONDS, MAX_STEPS, MAX_TASKS, MOST_PRIORITY

_MOST: Final[Mapping[str, float]] = {
    "submitted_at": MAX_POSIX_SECONDS,
    "deadline_seconds": MAX_SECONDS,
    "duration_seconds": MAX_SECONDS,
    "priority": MOST_PRIORITY,
    "global_batch_size": MAX_BATCH,
    **{f"elastic_batch.{field}": MAX_BATCH for field in ("minimum", "maximum", "per_pass", "most_passes")},
    "workers": MAX_TASKS,
    **{
        f"{tasks}.{field}": MAX_TASKS
        for tasks in ("workers", "servers")
        for field in ("minimum", "maximum", "requested")
    },
    "convergence.max_steps": MAX_STEPS,
    "convergence.max_epochs": MAX_SECONDS,
    "convergence.max_seconds": MAX_SECONDS,
    "truth.total_steps": MAX_STEPS,
    "truth.steps_per_epoch": MAX_STEPS,
    "truth.noise_scale": MAX_STEPS,
    **{
        f"truth.speed.{field}": MAX_SECONDS
        for field in ("theta", "compute_seconds", "exchange_seconds", "pass_seconds")
    },
    "truth.speed.measured": MAX_STEPS,
}
"""The largest value of each field of a job, or of each number in it; the least is 0."""


def check_limits(job: Mapping[str, Any]) -> None:
    """Of a job's fields as they are in the file.

    Raises:
        ValueError: one is too large, below 0 or NaN; the message names the job, the field and its limit.
    """
    for field, most in _MOST.items():
        for value in _numbers(_at(job, field.split("."))):
            if not 0 <= value <= most:
                raise ValueError(f"job {job.get('id')}: {field} is {value:g}, but must be from 0 to {most:g}")


def _at(fields: Any, names: list[str]) -> Any:
    for name in names:
        fields = fields.get(name) if isinstance(fields, Mapping) else None
    return fields


def _numbers(value: Any) -> Iterator[float]:
    """A number, or those of a list; of anything else none, which is not judged here."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
