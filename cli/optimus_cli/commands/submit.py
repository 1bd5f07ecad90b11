"""`optimus submit`: a job from a file, from flags, or from both."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from optimus_cli import output, render_predictions, watching
from optimus_cli.bodies import Job
from optimus_cli.client import DEFAULT_URL, is_here
from optimus_cli.commands.watch import watch_to_the_end
from optimus_cli.errors import Refused
from optimus_cli.flags import given, with_flags
from optimus_cli.jobfile import read_job_file
from optimus_cli.options import AsJson, HelpAll, Url, connect, script_command
from optimus_cli.resolve import find_job
from optimus_cli.specification import Script, Specification, activated_python, assemble


@with_flags
def submit(
    file: Annotated[Path | None, typer.Argument(help="A YAML or JSON file; flags override its fields.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key gives the same job.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Submit nothing; say what the job would get, cost and do to others.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it has ended.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    _help_all: HelpAll = False,
    **fields: Any,
) -> None:
    """Submit a training job and print its id: a file, a --task, or a training script (-- torchrun train.py).

    With --watch: exit code 1 if the job does not succeed. With --watch --json: one line of JSON per look.
    """
    command = script_command.get()
    origin = None if fields["from_job"] is None else look_up(fields["from_job"], url)
    flags = given(fields | {"from_job": origin and origin["id"]})
    task = fields["task"]
    like = None if origin is None or file is not None or task is not None else specification_like(origin)
    script = None if command is None else Script(command, activated_python(os.environ) if is_here(url) else None)
    specification = assemble(read_job_file(file) if file else None, flags, Path.cwd(), like, script)
    if dry_run:
        preview(specification, url, as_json=as_json)
        return
    send(specification, idempotency_key or str(uuid.uuid4()), url, watch=watch, as_json=as_json)


def specification_like(origin: Job) -> dict[str, Any]:
    """Of a job that resembles this one, whose deadline and pause were its own."""
    own = ("deadline", "deadline_seconds", "paused")
    return {name: value for name, value in origin["spec"].items() if name not in own}


def look_up(reference: str, url: str) -> Job:
    """The job that another one starts from."""
    with connect(url) as client:
        return find_job(client, reference)


def preview(specification: Specification, url: str, *, as_json: bool) -> None:
    """Ask what would happen, and print it; refused fields as with a real submission."""
    with connect(url) as client:
        try:
            plan = client.plan(specification.document)
        except Refused as refusal:
            raise specification.explain(refusal) from refusal
    if as_json:
        output.print_json(plan)
    else:
        output.show(render_predictions.plan(plan))


def send(specification: Specification, idempotency_key: str, url: str, *, watch: bool, as_json: bool) -> None:
    """Submit and print; a refused field is traced back to the file's line or the flag."""
    with connect(url) as client:
        try:
            job = client.submit(specification.document, idempotency_key)
        except Refused as refusal:
            raise specification.explain(refusal) from refusal
        if not as_json:
            output.print_text(job["id"])
        elif not watch:
            output.print_json(job)
        if watch:
            watch_to_the_end(client, [job["id"]], watching.REFRESH_SECONDS, as_json=as_json)
