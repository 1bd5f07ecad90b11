"""Which jobs wait, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import QueuedJob
from optimus_cli.render import columns_table


def queue(jobs: Sequence[QueuedJob], now: datetime) -> RenderableType:
    """One line per job, from the top of the queue."""
    if not jobs:
        return Text("No job waits.", style="dim")
    table = columns_table("no.", "id", "project", "owner", "starts in", "age", "why", right=["no."], folded=["why"])
    for job in jobs:
        expected = job["expected"]
        table.add_row(
            str(job["position"]),
            escape(job["id"]),
            escape(job["project"]),
            escape(job["owner"] or wording.UNKNOWN),
            wording.duration_interval(None if expected is None else expected["start_seconds"]),
            wording.ago(job["submitted_at"], now),
            job["why"],
        )
    return table
