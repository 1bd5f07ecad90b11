"""`optimus stop`: end the service of a data directory, and its tasks if that is wanted."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from optimus_cli import background, output
from optimus_cli.configuration import load_settings, service_is_missing
from optimus_cli.errors import BadInput, CliError


def stop(
    data_directory: Annotated[Path | None, typer.Option(resolve_path=True, help="As given to `optimus serve`.")] = None,
    tasks: Annotated[
        bool, typer.Option("--tasks/--leave-tasks", help="End the training tasks on this machine, too.")
    ] = False,
) -> None:
    """Stop the service that uses a data directory. Training goes on, unless --tasks ends it as well.

    Jobs whose tasks were ended go on from their last checkpoints when the service runs again.
    """
    directory = load_settings({"data_directory": data_directory}, misspelled_are_errors=False).data_directory.resolve()
    if data_directory is not None and not directory.is_dir():
        raise BadInput(f"{directory} does not exist. Name the directory that `optimus serve` was given.")
    running = background.find(directory)
    if running is not None:
        background.stop(running)
        output.print_text(f"The service at {running.url} has stopped.")
    elif not (directory / "lock").exists():
        raise CliError(f"{directory} is no service's data directory. Name it with --data-directory.")
    else:
        output.print_text(f"No service runs on {directory}.")
    n_alive = _tasks(directory, end=tasks)
    if tasks:
        output.print_text("No task is left.")
    elif n_alive:
        named = "" if data_directory is None else f" --data-directory {shlex.quote(str(data_directory))}"
        output.print_text(f"{n_alive} training tasks go on; `optimus stop --tasks{named}` ends them.")


def _tasks(directory: Path, *, end: bool) -> int:
    """How many tasks of local jobs live; ended before, if `end`. Raises `CliError` when some cannot be ended."""
    try:
        from optimus_scheduler.model import TaskPhase
        from optimus_service.clusters.local import LocalCluster, LocalClusterOptions
        from optimus_service.clusters.stop_all import stop_all_tasks
    except ImportError as error:
        raise service_is_missing(error) from error
    if not (directory / "local").is_dir():
        return 0
    cluster = LocalCluster(LocalClusterOptions(directory / "local"))
    try:
        if end and not stop_all_tasks(cluster):
            raise CliError("Some tasks could not be ended; try again.")
        return sum(task.phase is not TaskPhase.EXITED for task in cluster.tasks())
    finally:
        cluster.close()
