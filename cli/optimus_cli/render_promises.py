"""How predictions turned out, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import PromiseScore, Scorecard
from optimus_cli.render import columns_table

_KINDS = {
    "steps": "steps left",
    "seconds": "time left at its size",
    "time": "time to the end",
    "start": "time to the start",
}
_PARTS = {"10 %": "10 to 25 %", "25 %": "25 to 50 %", "50 %": "50 to 75 %", "75 %": "75 % on"}
"""Of a life: a prediction is made in one of these, not at its beginning."""
_LEAST_HELD, _MOST_HELD = 0.7, 0.9
"""An 80 % interval that holds less or more often than this is marked ..."""
_ENOUGH = 10
"""... when so many were judged: of fewer, chance decides."""


def scorecard(found: Scorecard, task: str | None = None) -> RenderableType:
    """All tasks together, or one, and then how often the time left was held by task."""
    if not found["scores"]:
        return Text("No prediction has been judged yet: that takes a job that succeeded.")
    title = "All tasks" if task is None else task
    parts: list[RenderableType] = [Text(title, style="bold"), _table(found["scores"])]
    if task is None and len(found["tasks"]) > 1:
        parts += [Text("\nBy task", style="bold"), _by_task(found)]
    return Group(*parts)


def _table(scores: Sequence[PromiseScore]) -> Table:
    figures = ("judged", "held", "median error")
    table = columns_table("predicted", "when", *figures, right=figures)
    for score in scores:
        table.add_row(
            _KINDS.get(score["kind"], score["kind"]),
            _PARTS.get(score["part"], score["part"]),
            wording.count(score["promises"]),
            _held(score["held"], score["promises"]),
            f"{score['median_error_percent']:.0f} %",
        )
    table.caption = "when: part of the life, or of the wait; held: part whose 80 % interval held what came"
    return table


def _by_task(found: Scorecard) -> Table:
    table = columns_table("task", "judged", "steps held", "time held", right=["judged", "steps held", "time held"])
    for each in found["tasks"]:
        cells = []
        for kind in ("steps", "seconds"):
            those = [score for score in each["scores"] if score["kind"] == kind]
            judged = sum(score["promises"] for score in those)
            held = sum(score["held"] * score["promises"] for score in those) / judged if judged else None
            cells.append(Text(wording.UNKNOWN) if held is None else _held(held, judged))
        table.add_row(Text(each["task"]), wording.count(sum(score["promises"] for score in each["scores"])), *cells)
    return table


def _held(part: float, judged: int) -> Text:
    is_odd = judged >= _ENOUGH and not _LEAST_HELD <= part <= _MOST_HELD
    return Text(wording.percent(part), style="yellow" if is_odd else "")
