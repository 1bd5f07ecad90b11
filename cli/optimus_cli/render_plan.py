"""What `optimus submit --dry-run` shows. Pure."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import Plan
from optimus_cli.render import facts_table


def plan(answer: Plan) -> RenderableType:
    """What would happen if a job were submitted now."""
    cost = answer["cost"]
    facts: list[tuple[str, RenderableType]] = [
        ("Would get", f"{wording.tasks(answer['allocation'])} ({answer['reason']})"),
        ("Starts in", wording.duration_interval(answer["expected"]["start_seconds"])),
        ("Ends in", wording.duration_interval(answer["expected"]["finish_seconds"])),
        ("Costs", wording.UNKNOWN if cost is None else wording.number(cost["mean"])),
        ("In words", "\n".join(answer["sentences"])),
    ]
    if not answer["effects"]:
        return facts_table(facts)
    others = Table("job", "before", "after", "ended in", "would end in", box=box.SIMPLE)
    for effect in answer["effects"]:
        others.add_row(
            effect["job_id"],
            wording.tasks(effect["before"]),
            wording.tasks(effect["after"]),
            wording.duration_interval(effect["finish_seconds_before"]),
            wording.duration_interval(effect["finish_seconds_after"]),
        )
    return Group(facts_table(facts), Text("\nOther jobs", style="bold"), others)
