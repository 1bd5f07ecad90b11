"""`optimus demo`: watch real training jobs share this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optimus_cli.options import AsJson

DEFAULT_DIRECTORY = Path("demo-output")
DEFAULT_SLOTS = 8
ROUND_SECONDS = 3.5
"""Jobs of a minute need rounds of seconds; a cluster of jobs of hours has rounds of a minute."""


def demo(
    directory: Annotated[Path, typer.Option(help="Where everything is written.")] = DEFAULT_DIRECTORY,
    slots: Annotated[int, typer.Option(min=4, max=256, help="CPU slots that the jobs share.")] = DEFAULT_SLOTS,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    round_seconds: Annotated[float, typer.Option(min=0.5, max=60, help="Scheduling period.")] = ROUND_SECONDS,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Leave the service up until Ctrl-C, to look around.")
    ] = False,
    scripts: Annotated[
        bool, typer.Option("--scripts", help="Two scripts that know nothing of Optimus, beside a job with servers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a service, submit three jobs, show them live, write summary.json and demo.png, stop everything.

    Exit code 1 if a job did not succeed.
    """
    from optimus_cli.demo.run import Options, run

    options = Options(directory, slots, port, round_seconds, keep_running, as_json, scripts)
    summary = run(options)
    if any(job["state"] != "succeeded" for job in summary["jobs"]):
        raise typer.Exit(1)
