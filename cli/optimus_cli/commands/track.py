"""`optimus track`: a training that runs here, by its owner's own means, shown by the service like a job."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import optimus_client
from optimus_cli import output
from optimus_cli.client import DEFAULT_URL
from optimus_cli.errors import BadInput
from optimus_cli.options import Url, ca_file, script_command
from optimus_client.configuration import place
from optimus_client.tracking import tracked_spec
from optimus_contract.command import UnknownOption, launch, program_meant, title_of
from optimus_contract.job import checked_patterns
from optimus_contract.job_name import name_for
from optimus_contract.limits import MAX_TASKS


def track(
    name: Annotated[str | None, typer.Option(help="Name of the job; default: the script's.")] = None,
    project: Annotated[str | None, typer.Option(help="Project of the job; default: default.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_TASKS, help="Processes that train together; default: as torchrun is told, else 1."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, max=64, help="GPUs of each process; default: 1 if this machine shows any.")
    ] = None,
    gpu_type: Annotated[str | None, typer.Option(help="Type of these GPUs, as nodes of the cluster name it.")] = None,
    progress_pattern: Annotated[
        list[str] | None,
        typer.Option(help="Regular expression for printed lines, with groups such as (?P<step>...) and (?P<loss>...)."),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Run a training command here and let the service watch it: its curve, its end, a page like a job's.

    Nothing is scheduled, and the command is not disturbed: its output, its signals and its exit code are its own,
    whether or not the service answers.
    """
    from optimus_workers.errors import ServiceAway, ServiceRefused  # other commands need no workers
    from optimus_workers.script import tracker

    command = script_command.get()
    if command is None:
        raise BadInput("Give a command after --, such as: optimus track -- python train.py")
    if shutil.which(command[0]) is None:
        near = program_meant(command[0], shutil.which)
        meant = f"python {command[0]}" if command[0].endswith(".py") and Path(command[0]).is_file() else near
        hint = "" if meant is None else f" Did you mean `{meant}`?"
        raise BadInput(f"{command[0]} is not a program that can be run here.{hint}")
    try:
        patterns = checked_patterns(list(progress_pattern or ()))
        n_workers = workers or _processes(command, tracker.visible_gpus())
        specification = tracked_spec(
            name or name_for(title_of(command)),
            command=list(command),
            project=project,
            workers=n_workers,
            gpus=min(tracker.visible_gpus(), 1) if gpus is None else gpus,
            gpu_type=gpu_type,
        )
        token = place(url).token
        client = optimus_client.Client(url, token, ca_file=ca_file.get())
    except ValueError as error:
        raise BadInput(str(error)) from error
    if patterns:
        specification["progress_patterns"] = patterns
    key = uuid.uuid4().hex

    def register() -> tracker.Tracked:
        try:
            job = client.submit(specification, idempotency_key=key)
            return tracker.Tracked(url, job.id, client.issue_token(job.id))
        except optimus_client.ApiError as error:
            if error.status >= 500 or error.status == 429:
                raise ServiceAway(str(error)) from error
            raise ServiceRefused(error.status, str(error)) from error
        except optimus_client.Unreachable as error:
            raise ServiceAway(str(error)) from error

    with _no_warnings_of("optimus_workers"):  # the output is the command's
        code = tracker.run_tracked(
            command,
            register,
            n_workers=n_workers,
            progress_patterns=patterns,
            on_news=lambda text: output.say(f"optimus: {text}"),
        )
    raise typer.Exit(code)


@contextmanager
def _no_warnings_of(package: str) -> Iterator[None]:
    logger = logging.getLogger(package)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _processes(command: tuple[str, ...], gpus: int) -> int:
    """How many processes a launcher is told to start, on all nodes; 1 for a command without one."""
    try:
        found = launch(command, gpus=gpus)
    except UnknownOption:
        return int(os.environ.get("WORLD_SIZE") or 1)
    return found.n_processes * found.n_nodes if found.is_distributed else 1
