"""`optimus submit`: a job from a file, from flags, or from both."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from optimus_cli import output, watching
from optimus_cli.bodies import Job
from optimus_cli.client import DEFAULT_URL, is_here
from optimus_cli.commands.jobs import watch_to_the_end
from optimus_cli.errors import BadInput, Refused
from optimus_cli.job.flags import given, with_flags
from optimus_cli.job.jobfile import read_job_file
from optimus_cli.job.specification import Specification, activated_python, assemble
from optimus_cli.job.sweeps import SWEEP_LABEL, explained, parse_sweeps, swept
from optimus_cli.options import AsJson, HelpAll, Url, connect, script_command
from optimus_cli.resolve import find_job, near_projects
from optimus_cli.show import render_predictions
from optimus_contract.limits import MAX_BATCH_JOBS

_JOB_FILES = (".yaml", ".yml", ".json")
_SHORT = 6
"""Characters that tell sweeps of one name apart."""


@with_flags
def submit(
    file: Annotated[
        Path | None, typer.Argument(help="A YAML or JSON file, or a folder of them; flags override their fields.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE,...", help="A job per value; several: per combination (docs/bulk.md)."),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Of many jobs, submit those that can be; else one mistake refuses all.")
    ] = False,
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

    A folder or --sweep: many jobs, in one request; all are accepted, or none.

    With --watch: exit code 1 if the job does not succeed. With --watch --json: one line of JSON per look.
    """
    command = script_command.get()
    origin = None if fields["from_job"] is None else look_up(fields["from_job"], url)
    flags = given(fields | {"from_job": origin and origin["id"]})
    task = fields["task"]
    like = None if origin is None or file is not None or task is not None else specification_like(origin)
    python = activated_python(os.environ) if is_here(url) else None
    if not dry_run and command is not None and "--dry-run" in command:
        output.say("--dry-run behind -- goes to the command, and this is a submission: to ask only, put it before --.")
    key = idempotency_key or str(uuid.uuid4())
    files = _job_files(file)
    sweeps = parse_sweeps(sweep or ())
    specifications = [
        combination
        for each_file in files
        for combination in swept(
            assemble(None if each_file is None else read_job_file(each_file), flags, Path.cwd(), like, command, python),
            sweeps,
            _short(key),
        )
    ]
    is_one = not (sweeps or each or (file is not None and file.is_dir()))
    if dry_run:
        if not is_one:
            raise BadInput("--dry-run: says what one job would get; leave --sweep and --each out, and give one file")
        preview(specifications[0], url, as_json=as_json)
    elif is_one:
        send(specifications[0], key, url, watch=watch, as_json=as_json)
    else:
        send_many(specifications, key, url, atomic=not each, watch=watch, as_json=as_json)


def _job_files(file: Path | None) -> Sequence[Path | None]:
    """The file, or those of the folder, by name."""
    if file is None or not file.is_dir():
        return [file]
    found = sorted(path for path in file.iterdir() if path.suffix.lower() in _JOB_FILES)
    if not found:
        raise BadInput(f"{file}: there is no job file ({', '.join(_JOB_FILES)}) in this folder")
    if len(found) > MAX_BATCH_JOBS:
        raise BadInput(f"{file}: has {len(found)} job files; one request has at most {MAX_BATCH_JOBS}")
    return found


def _short(key: str) -> str:
    """The same for the same key, so that a repetition is the same request."""
    return hashlib.sha256(key.encode()).hexdigest()[:_SHORT]


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
        hints = near_projects(client, [specification.document])
        try:
            plan = client.plan(specification.document)
        except Refused as refusal:
            raise specification.explain(refusal) from refusal
    if as_json:
        output.print_json(plan)
    else:
        output.show(render_predictions.plan(plan))
    for hint in hints:
        output.say(hint)


def send(specification: Specification, idempotency_key: str, url: str, *, watch: bool, as_json: bool) -> None:
    """Submit and print; a refused field is traced back to the file's line or the flag."""
    with connect(url) as client:
        hints = near_projects(client, [specification.document])
        try:
            job = client.submit(specification.document, idempotency_key)
        except Refused as refusal:
            raise specification.explain(refusal) from refusal
        if not as_json:
            output.print_text(job["id"])
        elif not watch:
            output.print_json(job)
        for hint in hints:
            output.say(hint)
        if watch:
            watch_to_the_end(client, [job["id"]], watching.REFRESH_SECONDS, as_json=as_json)


def send_many(
    specifications: Sequence[Specification], idempotency_key: str, url: str, *, atomic: bool, watch: bool, as_json: bool
) -> None:
    """Submit together and print an id per line; what is refused is traced back to files and flags.

    Exit code 1 when (not `atomic`) some were refused.
    """
    if len(specifications) > MAX_BATCH_JOBS:
        raise BadInput(f"these are {len(specifications)} jobs; one request has at most {MAX_BATCH_JOBS}")
    with connect(url) as client:
        documents = [each.document for each in specifications]
        hints = near_projects(client, documents)
        try:
            outcome = client.submit_many(documents, idempotency_key, atomic=atomic)
        except Refused as refusal:
            raise explained(refusal, specifications) from refusal
        made = [item["id"] for item in outcome["jobs"] if item["id"] is not None]
        if as_json and not watch:
            output.print_json(outcome)
        elif not as_json:
            for job_id in made:
                output.print_text(job_id)
        for item in outcome["jobs"]:
            if item["problem"] is not None:
                output.say(f"refused: {item['name']}: {item['problem']['detail']}")
        for hint in hints:
            output.say(hint)
        sweep = specifications[0].document.get("labels", {}).get(SWEEP_LABEL)
        if sweep and not as_json:
            output.say(f"{len(made)} jobs; all of the sweep: optimus list --label {SWEEP_LABEL}={sweep}")
        if watch and made:
            watch_to_the_end(client, made, watching.REFRESH_SECONDS, as_json=as_json)
    if outcome["refused"]:
        raise typer.Exit(1)
