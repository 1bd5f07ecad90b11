"""Short tables: how predictions turned out, who used how much, which jobs wait, the tasks of a job, the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optimus_cli.bodies import Node, PredictionScore, QueuedJob, Scorecard, Task, Usage, UsageAmounts
from optimus_cli.show import wording
from optimus_cli.show.layout import FittingTable, columns_table

# --- how predictions turned out --------------------------------------------------------------------------------------

_KINDS = {
    "steps": "steps left",
    "seconds": "time left at its size",
    "time": "time to the end",
    "start": "time to the start",
}
_SHORT_KINDS = {"steps": "steps", "seconds": "at its size", "time": "end", "start": "start"}
_PARTS = {"10 %": "10 to 25 %", "25 %": "25 to 50 %", "50 %": "50 to 75 %", "75 %": "75 % on"}
"""Of a life: a prediction is made in one of these, not at its beginning."""
_LEAST_HELD, _MOST_HELD = 0.7, 0.9
"""An 80 % interval that holds less or more often than this is marked ..."""
_ENOUGH = 10
"""... when so many were judged: of fewer, chance decides."""


def scorecard(found: Scorecard, task: str | None = None) -> RenderableType:
    """All tasks together, or one, and then how often each kind of prediction was held by task."""
    if not found["scores"]:
        return Text("No prediction has been judged yet: that takes a job that succeeded.")
    title = "All tasks" if task is None else task
    parts: list[RenderableType] = [Text(title, style="bold"), _table(found["scores"])]
    if task is None and len(found["tasks"]) > 1:
        parts += [Text("\nBy task", style="bold"), _by_task(found)]
    return Group(*parts)


def _table(scores: Sequence[PredictionScore]) -> Table:
    numbers = ("judged", "held", "median error")
    table = columns_table("predicted", "when", *numbers, right=numbers)
    for score in scores:
        table.add_row(
            _KINDS.get(score["kind"], score["kind"]),
            _PARTS.get(score["part"], score["part"]),
            wording.count(score["promises"]),
            _held(score["held"], score["promises"]),
            f"{score['median_error_percent']:.0f} %",
        )
    table.caption = (
        "when: part of the life, or of the wait, as then predicted; held: part whose 80 % interval held what came"
    )
    return table


def _by_task(found: Scorecard) -> Table:
    kinds = [
        kind for kind in _KINDS if any(score["kind"] == kind for each in found["tasks"] for score in each["scores"])
    ]
    names = [_SHORT_KINDS[kind] for kind in kinds]
    table = columns_table("task", *names, right=names, folded=["task"])
    for each in found["tasks"]:
        cells = []
        for kind in kinds:
            those = [score for score in each["scores"] if score["kind"] == kind]
            judged = sum(score["promises"] for score in those)
            held = round(sum(score["held"] * score["promises"] for score in those))
            part = _held(held / judged, judged) if judged else Text(wording.UNKNOWN)
            cells.append(Text.assemble(part, f" of {wording.count(judged)}") if judged else part)
        table.add_row(Text(each["task"]), *cells)
    table.caption = "part of the judged predictions, of the four kinds above, that held what came"
    return table


def _held(part: float, judged: int) -> Text:
    is_odd = judged >= _ENOUGH and not _LEAST_HELD <= part <= _MOST_HELD
    return Text(wording.percent(part), style="yellow" if is_odd else "")


# --- who used how much -----------------------------------------------------------------------------------------------


def usage(found: Usage) -> RenderableType:
    """One line for each project, owner and GPU type, and their sum. Without prices there is no cost."""
    if not found["lines"]:
        return Text(f"Nothing was used in {found['month']}.", style="dim")
    priced = found["total"]["cost"] is not None
    numbers = ("worker hours", "core hours", "GPU hours", *(("cost",) if priced else ()))
    table = columns_table("project", "owner", "GPU type", *numbers, right=numbers)
    for line in found["lines"]:
        whose = (line["project"], line["owner"] or wording.UNKNOWN, line["gpu_type"] or "none")
        table.add_row(*whose, *_hours(line))
    table.add_section()
    table.add_row("all", "", "", *_hours(found["total"]))
    table.caption = f"{found['month']} (UTC), until {found['until'][:16].replace('T', ' ')}"
    return table


def _hours(amounts: UsageAmounts) -> list[str]:
    hours = [f"{amounts[name]:.2f}" for name in ("worker_hours", "core_hours", "gpu_hours")]
    return hours if amounts["cost"] is None else [*hours, f"{amounts['cost']:.2f}"]


# --- which jobs wait -------------------------------------------------------------------------------------------------

LEFT_OUT = ("owner", "project", "submitted")
"""Columns that a narrow terminal has no room for, the first of them first."""


def queue(jobs: Sequence[QueuedJob], now: datetime) -> RenderableType:
    """One line per job, from the top of the queue."""
    if not jobs:
        return Text("No job waits.", style="dim")
    table = FittingTable([dict(_cells(job, now)) for job in jobs], LEFT_OUT, right=["no."], folded=["why"])
    looks = [job["expected"].get("computed_at") for job in jobs if job["expected"] and job["expected"]["start_seconds"]]
    newest = max((each for each in looks if each), default=None)
    told = [] if newest is None else [f"Starts are told by {wording.look(newest, now)}."]
    order = ["Each round decides anew: a smaller, shorter or more urgent job may start before those above it."]
    words = " ".join([*told, *(order if len(jobs) > 1 else [])])
    return Group(table, Text(words, style="dim")) if words else table


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


# --- a job's tasks, and what each takes of its machine ---------------------------------------------------------------


def task_table(tasks: Sequence[Task], now: datetime) -> Table:
    """Those that have not ended."""
    table = columns_table("task", "node", "since", "CPU cores", "memory", "GPU", right=["CPU cores", "memory"])
    for task in tasks:
        usage = task["usage"]
        table.add_row(
            f"{task['role']} {task['rank']}",
            Text(task["node"]),
            wording.ago(task["started_at"], now),
            wording.UNKNOWN if usage is None else f"{wording.number(usage['cpu_cores'])}{_age(usage['at'], now)}",
            wording.UNKNOWN if usage is None else wording.size(usage["memory_bytes"]),
            _gpu(task),
        )
    return table


_OLD_SECONDS = 60.0


def _age(at: str, now: datetime) -> str:
    """Of a figure that is old: a worker that stands still tells no other."""
    is_old = (now - wording.moment(at)).total_seconds() > _OLD_SECONDS
    return f", {wording.ago(at, now)}" if is_old else ""


def _gpu(task: Task) -> Text:
    """Its type, how busy it is, and how much of its memory is used, as far as that is told."""
    kind, usage = task["gpu_type"] or "", task["usage"]
    busy = usage["gpu_utilization"] if usage is not None else None
    used = usage["gpu_memory_bytes"] if usage is not None else None
    told = [wording.percent(busy)] if busy is not None else []
    told += [wording.size(used)] if used is not None else []
    return Text(f"{kind} {', '.join(told)}".strip())


# --- nodes -----------------------------------------------------------------------------------------------------------


def _closed(node: Node) -> str:
    """Why nothing new goes there."""
    if not node.get("drained"):
        return "not schedulable"
    return "drained" if not node["tasks"] else "is being drained"


def node_list(nodes: Sequence[Node]) -> RenderableType:
    if not nodes:
        return Text("The cluster has no nodes.", style="dim")
    table = columns_table("node", "CPU used", "memory used", "GPUs", "tasks", "", right=["CPU used", "tasks"])
    for node in nodes:
        used, capacity = node["used"], node["capacity"]
        table.add_row(
            Text(node["name"]),
            wording.used_of(used, capacity),
            f"{wording.size(used['memory_bytes'])} of {wording.size(capacity['memory_bytes'])}",
            wording.gpus(capacity["gpus"]),
            str(len(node["tasks"])),
            "" if node["schedulable"] else Text(_closed(node), style="yellow"),
        )
    return table
