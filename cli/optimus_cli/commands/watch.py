"""`optimus watch`: jobs live, until they have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from optimus_cli import output, watching
from optimus_cli.bodies import Job
from optimus_cli.client import DEFAULT_URL, Client
from optimus_cli.options import AsJson, JobReferences, Url, connect
from optimus_cli.resolve import find_job

Interval = Annotated[float, typer.Option("--interval", min=0.05, max=3600, help="Seconds between two looks.")]


def watch(
    jobs: JobReferences = None,
    interval: Interval = watching.REFRESH_SECONDS,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Watch jobs until they have ended; without JOB, all that are active. Exit code 1 if one did not succeed.

    With --json: one line of JSON per look.
    """
    with connect(url) as client:
        job_ids = [find_job(client, reference)["id"] for reference in jobs] if jobs else None
        watch_to_the_end(client, job_ids, interval, as_json=as_json)


def watch_to_the_end(client: Client, job_ids: Sequence[str] | None, interval: float, *, as_json: bool) -> None:
    """Follow the jobs; exit code 1 when one of them failed or was cancelled."""
    stream = watching.frames(client, job_ids, interval_seconds=interval)
    try:
        final = watching.follow(stream, watching.display(output.console(), as_json=as_json))
    except KeyboardInterrupt:
        which = " ".join(job_ids) if job_ids else "The jobs"
        goes = "goes" if job_ids and len(job_ids) == 1 else "go"
        end = f"; end it: optimus cancel {which}" if goes == "goes" else ""
        output.say(f"\n{which} {goes} on{end}.")
        raise
    if not final and not as_json:
        output.say("No job is active.")
    report_failures(final)


def report_failures(jobs: Sequence[Job]) -> None:
    """One line on stderr for each job that did not succeed, and exit code 1 if there is one."""
    unsuccessful = [job for job in jobs if job["state"] != "succeeded"]
    for job in unsuccessful:
        output.say(f"{job['id']} {job['state']}" + (f": {job['failure']}" if job["failure"] else ""))
    if unsuccessful:
        raise typer.Exit(1)
