"""Flags of limits: what a user, or the members of a project, may take at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from optimus_cli.show import wording

MaxWaiting = Annotated[
    int | None, typer.Option("--max-waiting", min=0, help="Jobs that may wait at a time, queued or paused.")
]
MaxWorkers = Annotated[int | None, typer.Option("--max-workers", min=1, help="Workers that one job may ask for.")]
WorkersTogether = Annotated[
    int | None, typer.Option("--workers-together", min=1, help="Workers that all jobs together hold at a time.")
]
MaxPriority = Annotated[float | None, typer.Option("--max-priority", help="Priority that a job may have.")]
MaxRequests = Annotated[
    float | None, typer.Option("--max-requests", help="Requests a second, of all tokens of the user together.")
]
FIELDS = {
    "max-waiting": "waiting_jobs",
    "max-workers": "max_workers",
    "workers-together": "workers_together",
    "max-priority": "max_priority",
    "max-requests": "requests_per_second",
}
"""The field of each flag."""


def given(
    waiting: int | None,
    workers: int | None,
    together: int | None,
    priority: float | None,
    requests: float | None = None,
) -> dict[str, float]:
    """Limits by field, of the flags that were given."""
    values = zip(FIELDS.values(), (waiting, workers, together, priority, requests), strict=True)
    return {field: value for field, value in values if value is not None}


def words(limits: Mapping[str, object]) -> str:
    """waiting jobs 100, max priority 2; a dash for none"""
    said = [f"{name.replace('_', ' ')} {value:g}" for name, value in limits.items() if isinstance(value, int | float)]
    return ", ".join(said) or wording.UNKNOWN
