"""Who used how much, as a table."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import Usage, UsageAmounts
from optimus_cli.render import columns_table


def usage(found: Usage) -> RenderableType:
    """One line for each project, owner and GPU type, and their sum. Without prices there is no cost."""
    if not found["lines"]:
        return Text(f"Nothing was used in {found['month']}.", style="dim")
    priced = found["total"]["cost"] is not None
    figures = ("worker hours", "core hours", "GPU hours", *(("cost",) if priced else ()))
    table = columns_table("project", "owner", "GPU type", *figures, right=figures)
    for line in found["lines"]:
        whose = (line["project"], line["owner"] or wording.UNKNOWN, line["gpu_type"] or "none")
        table.add_row(*whose, *_figures(line))
    table.add_section()
    table.add_row("all", "", "", *_figures(found["total"]))
    table.caption = f"{found['month']} (UTC), until {found['until'][:16].replace('T', ' ')}"
    return table


def _figures(amounts: UsageAmounts) -> list[str]:
    hours = [f"{amounts[name]:.2f}" for name in ("worker_hours", "core_hours", "gpu_hours")]
    return hours if amounts["cost"] is None else [*hours, f"{amounts['cost']:.2f}"]
