"""A job's tasks, and what each takes of its machine, as rich shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import Task
from optimus_cli.render import columns_table


def task_table(tasks: Sequence[Task], now: datetime) -> Table:
    """Those that have not ended."""
    table = columns_table("task", "node", "since", "CPU cores", "memory", "GPU", right=["CPU cores", "memory"])
    for task in tasks:
        usage = task["usage"]
        table.add_row(
            f"{task['role']} {task['rank']}",
            Text(task["node"]),
            wording.ago(task["started_at"], now),
            wording.UNKNOWN if usage is None else wording.number(usage["cpu_cores"]),
            wording.UNKNOWN if usage is None else wording.size(usage["memory_bytes"]),
            _gpu(task),
        )
    return table


def _gpu(task: Task) -> Text:
    """Its type, how busy it is, and how much of its memory is used, as far as that is told."""
    kind, usage = task["gpu_type"] or "", task["usage"]
    busy = usage["gpu_utilization"] if usage is not None else None
    used = usage["gpu_memory_bytes"] if usage is not None else None
    told = [wording.percent(busy)] if busy is not None else []
    told += [wording.size(used)] if used is not None else []
    return Text(f"{kind} {', '.join(told)}".strip())
