"""Which jobs wait, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import QueuedJob
from optimus_cli.render import FittingTable

LEFT_OUT = ("owner", "project", "submitted")
"""Columns that a narrow terminal has no room for, the first of them first."""


def queue(jobs: Sequence[QueuedJob], now: datetime) -> RenderableType:
    """One line per job, from the top of the queue."""
    if not jobs:
        return Text("No job waits.", style="dim")
    return FittingTable([dict(_cells(job, now)) for job in jobs], LEFT_OUT, right=["no."], folded=["why"])


def _cells(job: QueuedJob, now: datetime) -> list[tuple[str, RenderableType]]:
    expected = job["expected"]
    return [
        ("no.", str(job["position"])),
        ("id", Text(job["id"])),
        ("project", Text(job["project"])),
        ("owner", Text(job["owner"] or wording.UNKNOWN)),
        ("starts in", wording.wait(None if expected is None else expected["start_seconds"])),
        ("submitted", wording.ago(job["submitted_at"], now)),
        ("why", Text(job["why"])),
    ]
