"""`optimus logs`: what a job's tasks printed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from optimus_cli import output
from optimus_cli.bodies import Job, Log
from optimus_cli.client import DEFAULT_URL, Client, is_final
from optimus_cli.errors import BadInput, Refused
from optimus_cli.options import AsJson, JobReference, Url, connect
from optimus_cli.resolve import find_job
from optimus_contract.limits import MAX_LOGS

FOLLOW_SECONDS = 1.0
SHOWN_TASKS = 10
"""Names of tasks that an error lists."""
ANCHOR_CHARACTERS = 400
"""The service gives the end of a log. What was seen already is found again by this many of its last characters."""


def logs(
    job: JobReference,
    task: Annotated[str | None, typer.Option(help="Only this task (its name, or a unique part: worker-0).")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print the end of what a job's tasks printed, the newest task last. With --follow --json: a line per piece."""
    with connect(url) as client:
        said = find_job(client, job)
        job_id = said["id"]
        if follow and not said["spec"].get("tracked"):
            for piece in followed(client, job_id, task):
                _print_piece(piece, as_json=as_json)
            return
        newest = client.logs(job_id)
        found = chosen(newest, task) or (named(client, job_id, task, newest) if task is not None and newest else [])
    if not found:
        output.say(_why_none(said))
    if as_json:
        output.print_json({"logs": found})
        return
    for log in found:
        _print_piece(log, as_json=False)
    if task is None and len(found) >= MAX_LOGS:
        output.say(f"These are the newest {len(found)} tasks; --task NAME shows an older one.")


def _why_none(job: Job) -> str:
    """Why a job has no log."""
    if job["spec"].get("tracked"):
        return f"{job['id']} trains outside the cluster: what it prints is where it was started, not here."
    if not is_final(job):
        return f"No task of {job['id']} has started yet."
    if job["started_at"] is None:
        return f"{job['id']} ended before a task of it had started."
    return f"No log of {job['id']} is kept any more: those of ended tasks are deleted after some time."


def chosen(found: list[Log], task: str | None) -> list[Log]:
    """The logs of tasks whose name has `task` in it; all for None."""
    exact = [log for log in found if log["task"] == task]
    return exact or [log for log in found if task is None or task in log["task"]]


def named(client: Client, job_id: str, task: str, newest: list[Log]) -> list[Log]:
    """The log of a task that is not among the newest. Raises `BadInput` when the job has none of this name."""
    try:
        return client.logs(job_id, task)
    except Refused as refusal:
        if refusal.exit_code != BadInput.exit_code:
            raise
        raise BadInput(f"--task {task}: the job has no such task. {_listed(newest)}") from refusal


def _listed(found: list[Log]) -> str:
    names = ", ".join(log["task"] for log in found[-SHOWN_TASKS:]) or "none yet"
    return f"It has {names}" + (f" and {len(found) - SHOWN_TASKS} more." if len(found) > SHOWN_TASKS else ".")


def followed(client: Client, job_id: str, task: str | None) -> Iterator[Log]:
    """New pieces of text as they appear, until the job has ended.

    A task may start later, so that a name without a task is told at once and is an error (`BadInput`) at the end.
    """
    seen: dict[str, str] = {}
    ended = warned = False
    while True:
        found = client.logs(job_id)
        fitting = chosen(found, task)
        if found and not fitting and not seen and not warned:
            warned = True
            output.say(f"No task is called {task} yet. {_listed(found)}")
        for log in fitting:
            text = news(seen.get(log["task"], ""), log["text"])
            seen[log["task"]] = log["text"]
            if text:
                yield Log(task=log["task"], text=text)
        if ended:
            if task is not None and found and not seen:
                raise BadInput(f"--task {task}: the job has no such task. {_listed(found)}")
            return
        # One more look after the end: the last lines may have come between the two questions.
        ended = is_final(client.job(job_id))
        if not ended:
            time.sleep(FOLLOW_SECONDS)


def news(before: str, now: str) -> str:
    """What `now` has after the end of `before`; both are ends of one growing text. All of it when they do not meet."""
    if now.startswith(before):
        return now[len(before) :]
    anchor = before[-ANCHOR_CHARACTERS:]
    at = now.rfind(anchor)
    return now if at < 0 else now[at + len(anchor) :]


_DRAWING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colours and movements of the cursor: progress bars draw over what stands above, which is another line here."""


def _print_piece(log: Log, *, as_json: bool) -> None:
    if as_json:
        output.print_json_line(log)
        return
    for line in _DRAWING.sub("", log["text"]).splitlines():
        output.print_text(f"{log['task']} | {line}")
