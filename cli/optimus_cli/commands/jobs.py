"""`optimus list`, `queue`, `describe`, `explain`, `watch`, `cancel`: look at jobs, end them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, get_args

import typer

from optimus_cli import output, watching
from optimus_cli.bodies import Job
from optimus_cli.client import DEFAULT_URL, Client
from optimus_cli.errors import BadInput
from optimus_cli.options import AsJson, JobReference, JobReferences, OptionalJobReference, Url, connect
from optimus_cli.resolve import check_project, find_job, with_the_rest
from optimus_cli.show import render_explanation, render_job, render_jobs, render_predictions, render_tables
from optimus_client.answers import ENDED
from optimus_contract.answers.jobs import JobState, ListedState

DEFAULT_LIMIT = 50
SHOWN_EVENTS = 100


_STATES = get_args(ListedState)


def _known_states(given: list[str] | None) -> list[str] | None:
    for each in given or ():
        if each not in _STATES:  # Typer knows no lists of choices
            raise typer.BadParameter(f"'{each}' is not one of {', '.join(map(repr, _STATES))}.")
    return given


def list_jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar=f"[{'|'.join(_STATES)}]",
            help="Only jobs in this state; repeatable. Starting ones are `queued` or `paused` as well.",
            callback=_known_states,
            autocompletion=lambda: list(_STATES),
        ),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Only jobs of this project.")] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs with this in their name.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Only jobs with this label; repeatable: with all of them."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs that this user submitted.")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only jobs that you submitted.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest first.")] = DEFAULT_LIMIT,
    everything: Annotated[bool, typer.Option("--all", help="All jobs, however many.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    if mine and owner is not None:
        raise BadInput("Give one of --mine and --owner.")
    given = {"state": state, "project": project, "name": name, "label": label, "owner": owner}
    asked = " ".join(f"--{key} {each}" for key, value in given.items() if value for each in _each(value))
    filters = {key: value for key, value in given.items() if value}
    with connect(url) as client:
        if mine:
            filters["owner"], asked = client.whoami()["name"], f"{asked} --mine".strip()
        most = None if everything else limit
        jobs = list(client.jobs(filters, limit=output.enough(most)))
        beside = ""
        if not state and not as_json and output.is_cut(jobs, most):
            active = list(client.jobs({**filters, "state": list(_ACTIVE)}, limit=_MOST_LOOKED_AT))
            beside = _older_active(active, jobs[:most])
        if not jobs and project is not None:
            check_project(client, project)
    if as_json:
        output.print_json({"jobs": jobs[:most], "more": output.is_cut(jobs, most)})
    elif not jobs and asked:
        output.print_text(f"No job matches {asked}.")
    else:
        output.show(render_jobs.job_list(jobs[:most], datetime.now(UTC)))
        output.say_what_is_left(jobs, most, "the newest", "job", "--all or --limit N", beside=beside)


_ACTIVE = tuple(each for each in get_args(JobState) if each not in ENDED)
_MOST_LOOKED_AT = 1000
"""Of jobs that have not ended: more are not counted."""


def _older_active(active: Sequence[Job], shown: Sequence[Job]) -> str:
    """How many jobs that have not ended are not among those that are shown."""
    ids = {each["id"] for each in shown}
    n_older = sum(each["id"] not in ids for each in active)
    if not n_older:
        return ""
    number = f"{n_older:,}{' or more' if len(active) >= _MOST_LOOKED_AT else ''}"
    return f", and {number} older {'one has' if number == '1' else 'ones have'} not ended"


def _each(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def queue(
    limit: Annotated[int, typer.Option(min=1, help="At most this many, from the top.")] = DEFAULT_LIMIT,
    everything: Annotated[bool, typer.Option("--all", help="All that wait, however many.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the jobs that wait, in the order in which they are expected to start, with why; those of which
    the same start is shown by priority, then age (by age or deadline where the policy is so). Each round decides anew:
    a smaller, shorter or more urgent job may start before those above it. Positions count all jobs that wait, also
    those that you may not read."""
    most = None if everything else limit
    with connect(url) as client:
        jobs = client.queue(output.enough(most))
    if as_json:
        output.print_json({"jobs": jobs[:most], "more": output.is_cut(jobs, most)})
        return
    output.show(render_tables.queue(jobs[:most], datetime.now(UTC)))
    output.say_what_is_left(jobs, most, "the first", "job", "--all or --limit N")


def describe(job: JobReference, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show everything about a job: state, progress, its sizes over time, its tasks, the latest events."""
    with connect(url) as client:
        found = find_job(client, job)
        job_id = found["id"]
        found, (allocations, tasks, events) = with_the_rest(
            client,
            found,
            lambda: (client.allocations(job_id), client.tasks(job_id), client.events(job_id, limit=SHOWN_EVENTS)),
        )
    if as_json:
        output.print_json({**found, "allocations": allocations, "tasks": tasks, "events": events})
        return
    now = datetime.now(UTC)
    shown = render_tables.task_table(tasks, now) if tasks else None
    output.show(render_job.job_description(found, allocations, events, now, shown))


def explain(
    job: JobReference,
    fit: Annotated[bool, typer.Option("--fit", help="Also the fitted coefficients of loss and speed.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say why a job has the size that it has, and what Optimus believes about it."""
    with connect(url) as client:
        found = find_job(client, job)
        decisions = client.decisions(found["id"], limit=render_explanation.READ_DECISIONS)
        explanation = client.explanation(found["id"])
        if explanation["at"] is not None and (not decisions or decisions[0]["at"] != explanation["at"]):
            # A round came in between: the newest decision of the table is the one that is explained.
            decisions = client.decisions(found["id"], limit=render_explanation.READ_DECISIONS)
            decisions = [each for each in decisions if each["at"] <= explanation["at"]]
        outcome = client.predictions(found["id"], "1", "1")["outcome"] if explanation["state"] in ENDED else None
    if as_json:
        output.print_json(
            {**explanation, "decisions": decisions[: render_explanation.SHOWN_DECISIONS], "outcome": outcome}
        )
        return
    output.show(render_explanation.explanation(explanation, decisions, datetime.now(UTC), with_fit=fit))
    if outcome is not None and outcome["review"]:
        output.show(render_predictions.review(outcome))


def cancel(
    job: OptionalJobReference = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="All active jobs with this label; repeatable: with all of them."),
    ] = None,
    project: Annotated[str | None, typer.Option(help="With --label: only jobs of this project.")] = None,
    yes: Annotated[  # noqa: ARG001 - it never asks; scripts give it to every command that ends something
        bool, typer.Option("--yes", "-y", help="Do not ask; it never does.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Cancel a job, or all with a label. Their tasks are stopped; their telemetry stays.

    With --label: exit code 1 if one of them could not be cancelled.
    """
    if (job is None) == (not label):
        raise BadInput("Give a job or --label NAME=VALUE: one of the two.")
    if job is not None:
        if project is not None:
            raise BadInput("--project goes with --label.")
        _cancel_one(job, url, as_json=as_json)
        return
    labels: dict[str, str | None] = {}
    for text in label or ():
        name, given, value = text.partition("=")
        labels[name] = value if given else None
    with connect(url) as client:
        outcome = client.cancel_selected(labels, project)
    if as_json:
        output.print_json(outcome)
    else:
        for item in outcome["jobs"]:
            if item["problem"] is None:
                output.print_text(f"{item['id']} is being cancelled")
            else:
                output.say(f"{item['id']}: {item['problem']['detail']}")
        if not outcome["jobs"]:
            output.print_text(f"No active job has {' '.join(f'--label {text}' for text in label or ())}.")
    if outcome["refused"]:
        raise typer.Exit(1)


def _cancel_one(job: str, url: str, *, as_json: bool) -> None:
    with connect(url) as client:
        cancelled = client.cancel(find_job(client, job)["id"])
    if as_json:
        output.print_json(cancelled)
    else:
        output.print_text(f"{cancelled['id']} is being cancelled")


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
