"""Which jobs wait, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import QueuedJob
from optimus_cli.render import columns_table, fitting

LEFT_OUT = ("owner", "project", "age")
"""Columns that a narrow terminal has no room for, the first of them first."""


def queue(jobs: Sequence[QueuedJob], now: datetime) -> RenderableType:
    """One line per job, from the top of the queue."""
    if not jobs:
        return Text("No job waits.", style="dim")
    return _Queue([dict(_cells(job, now)) for job in jobs])


@dataclass(frozen=True, slots=True)
class _Queue:
    """A table with fewer columns where the terminal is narrow: the reason keeps its words whole."""

    rows: Sequence[Mapping[str, RenderableType]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = fitting(self.rows, LEFT_OUT, options.max_width)
        table = columns_table(*widths, right=["no."], folded=["why"], widths=widths)
        for row in self.rows:
            table.add_row(*(row[name] for name in widths))
        yield table


def _cells(job: QueuedJob, now: datetime) -> list[tuple[str, RenderableType]]:
    expected = job["expected"]
    return [
        ("no.", str(job["position"])),
        ("id", escape(job["id"])),
        ("project", escape(job["project"])),
        ("owner", escape(job["owner"] or wording.UNKNOWN)),
        ("starts in", wording.wait(None if expected is None else expected["start_seconds"])),
        ("age", wording.ago(job["submitted_at"], now)),
        ("why", escape(job["why"])),
    ]
