"""`optimus promises`: how well predictions have turned out."""

from __future__ import annotations

from typing import Annotated

import typer

from optimus_cli import output, render_promises
from optimus_cli.client import DEFAULT_URL
from optimus_cli.errors import BadInput
from optimus_cli.options import AsJson, Url, connect

TaskName = Annotated[
    str | None, typer.Option(metavar="TASK", help="Only jobs of this task, such as package.module:name.")
]


def promises(task: TaskName = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show how predictions turned out: how often their 80 % intervals held what came, and by how much they erred.

    Judged by the newest jobs that succeeded, for each part of a job's life at which something was predicted.
    """
    with connect(url) as client:
        found = client.promises()
    if task is not None:
        known = {each["task"]: each for each in found["tasks"]}
        if task not in known:
            there = ", ".join(known) or "none yet"
            raise BadInput(f"--task: no job of {task!r} has been judged; there are: {there}")
        found = {"scores": known[task]["scores"], "tasks": [known[task]]}
    if as_json:
        output.print_json(found)
    else:
        output.show(render_promises.scorecard(found, task))
