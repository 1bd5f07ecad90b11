"""`optimus predict`: how long a job would take with other numbers of workers and servers; `optimus promises`: how well
predictions have turned out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from optimus_cli import output
from optimus_cli.client import DEFAULT_URL
from optimus_cli.errors import BadInput
from optimus_cli.options import AsJson, JobReference, Url, connect
from optimus_cli.resolve import find_job, with_the_rest
from optimus_cli.show import render_predictions, render_tables

Range = Annotated[str, typer.Option(metavar="LOW-HIGH", help="Sizes to predict for, such as 1-8 or 4.")]


def predict(
    job: JobReference,
    workers: Range = "1-8",
    servers: Range = "1-4",
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Find the cheapest size that ends in time: 90s, 30m, 2h, 1d.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Find the fastest size that costs no more to finish.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Also draw it into this file: time left against workers; after the end, what came."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Predict speed, time left and cost for other numbers of workers and servers; of ended jobs, how it was.

    Costs need prices: OPTIMUS_PRICE_PER_GPU_HOUR and OPTIMUS_PRICE_PER_CORE_HOUR of the service.
    """
    sizes = checked_range("--workers", workers), checked_range("--servers", servers)
    seconds = None if deadline is None else checked_duration("--deadline", deadline)
    with connect(url) as client:
        found = find_job(client, job)
        job_id = found["id"]
        found, predictions = with_the_rest(
            client, found, lambda: client.predictions(job_id, *sizes, deadline_seconds=seconds, budget=budget)
        )
    if png is not None:
        # matplotlib takes most of a second to import; only drawing needs it.
        from optimus_cli.show import plots

        draw = plots.remaining_time if predictions["outcome"] is None else plots.what_came
        plots.save(draw(found, predictions), png)
        output.say(f"drew {png}")
    if as_json:
        output.print_json(predictions)
    else:
        asked = render_predictions.Asked(in_time=deadline is not None, in_budget=budget is not None)
        output.show(render_predictions.prediction(found, predictions, asked))


_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def checked_duration(flag: str, text: str) -> float:
    """`90`, `90s`, `1.5h` in seconds. Raises `BadInput`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text)
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= 1e9:
        raise BadInput(f"{flag} {text}: expected a time such as 90s, 30m, 2h or 1d")
    return seconds


def checked_range(flag: str, text: str) -> str:
    """`4` or `1-8` as `low-high`. Raises `BadInput`; the service has the limit on how many."""
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise BadInput(f"{flag} {text}: expected a number above 0, or two like 1-8")
    return f"{low}-{high}"


# --- `optimus promises`: how well predictions have turned out --------------------------------------------------------

TaskName = Annotated[
    str | None, typer.Option(metavar="TASK", help="Only jobs of this task, such as package.module:name.")
]


def promises(task: TaskName = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show how predictions turned out: how often their 80 % intervals held what came, and by how much they erred.

    Judged by the newest jobs that succeeded, for each part of a job's life (as then predicted) with a prediction.
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
        output.show(render_tables.scorecard(found, task))
