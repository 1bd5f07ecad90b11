"""`optimus pause`, `resume`, `set`, `retry`, `delete`: what owners do with jobs that they have submitted."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Annotated, Any

import typer

from optimus_cli import output
from optimus_cli.bodies import AllocationPoint, Job
from optimus_cli.client import DEFAULT_URL, Client, is_final
from optimus_cli.errors import BadInput, Refused
from optimus_cli.job.flags import CHANGING, given, with_flags
from optimus_cli.job.specification import Specification, set_field
from optimus_cli.options import AsJson, JobReference, Url, Yes, ask, connect
from optimus_cli.resolve import find_job
from optimus_cli.show import render_predictions, wording
from optimus_cli.show.render_jobs import is_paused_by_owner
from optimus_contract.result import FormedAt, last_checkpoint, saved_by_stops


def pause(
    job: JobReference,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let a job save what it can and give back what it has, until `optimus resume`. Its deadline runs on.

    Asks first where that loses work: a script that is not known to go on from a checkpoint begins anew.
    """
    with connect(url) as client:
        found = find_job(client, job)
        lost = found.get("lost_by_a_stop")
        if lost and not yes:
            ask(f"Pause {found['id']}? It is not known to go on from a checkpoint, and loses {lost}.", "paused")
        paused = client.pause(found["id"])
    if as_json:
        output.print_json(paused)
        return
    whence = f"step {began}" if (began := _began_at(found)) else "its beginning"
    anew = f": from {whence}, as far as is known; lost: {lost}" if lost else ""
    how = "is paused" if paused["state"] == "paused" else "saves what it can and is paused then"
    has_limit = paused["started_at"] and (paused["spec"].get("convergence") or {}).get("max_seconds")
    runs_on = "; its limit of time runs on" if has_limit else ""
    output.print_text(f"{paused['id']} {how}; `optimus resume {paused['id']}` lets it go on{anew}{runs_on}")


def resume(job: JobReference, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Let a paused job have tasks again, or a failed or cancelled one go on from its last checkpoint, under its id."""
    with connect(url) as client:
        found = find_job(client, job)
        formed = client.allocations(found["id"]) if is_final(found) and not as_json else []
        resumed = client.resume(found["id"])
    if as_json:
        output.print_json(resumed)
    elif found["state"] == resumed["state"] == "running" and not is_paused_by_owner(found):
        output.print_text(f"{resumed['id']} trains already: nothing was changed")
    elif limit := resumed.get("limit_reached"):
        ends = f"{resumed['id']} ends as soon as a round gives it room: {limit}"
        larger = "With a larger limit (`optimus set`) before it is resumed, a job goes on"
        if is_final(found):  # nothing of it could be changed before
            larger = f"`optimus set {resumed['id']}` with a larger limit before that lets it go on"
            larger += f"; `optimus retry {resumed['id']}` runs it again as a new job"
        output.print_text(f"{ends}. {larger}")
    else:
        saved = " from its last checkpoint" * bool(resumed["step"])
        if is_final(found) and found["step"]:  # else its script knows whether it has a checkpoint
            saved = f" from {_goes_on_from(found, formed)},"
        began = f" from step {_began_at(found)}, as far as is known,"
        whence = began if found["started_at"] and found["begins_anew"] else saved
        output.print_text(f"{resumed['id']} goes on{whence} as soon as a round gives it room")


def _began_at(job: Job) -> int:
    """The step that a script that begins anew began from."""
    profile = job["profile"]
    return 0 if profile is None else profile.get("began_at_step") or 0


def _goes_on_from(job: Job, allocations: list[AllocationPoint]) -> str:
    """The last checkpoint of a job that has ended, in words."""
    started, finished, spec = job["started_at"], job["finished_at"], job["spec"]
    every, step = None if spec.get("command") else spec.get("checkpoint_seconds"), 0
    began = None if started is None else wording.moment(started).timestamp()
    if every is not None:  # a script saves when it likes
        times = (wording.moment(each["at"]).timestamp() for each in allocations)
        formed = [
            FormedAt(at, each["step"], each["cause"], each["lost_steps"])
            for at, each in zip(times, allocations, strict=True)
        ]
        step, began = saved_by_stops(formed, began)
    trained = None if began is None or finished is None else wording.moment(finished).timestamp() - began
    result = job["result"]
    return last_checkpoint(None if result is None else result["checkpoint"], job["step"], trained, every, step)


def _set_fields(
    job: JobReference,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Take it away: deadline, convergence.max_epochs, labels.NAME; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing; say what it would do to the job and to others."),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Change what a job may have, its end, its name or labels while it is active. What is not given stays."""
    flags = [flag for flag in given(fields, CHANGING) if flag.value is not None]
    document: dict[str, Any] = {}
    for flag in flags:
        set_field(document, flag)
    for name in unset or ():
        if name.startswith("labels."):
            document.setdefault("labels", {})[name.removeprefix("labels.")] = None
        else:
            document.setdefault("unset", []).append(name)
    if not document:
        raise BadInput("Say what is to change, such as --priority 2 or --workers-max 8.")
    sent = Specification(document, None, {flag.field: flag.name for flag in flags} | {("unset",): "--unset"})
    with connect(url) as client:
        before = find_job(client, job)
        _refuse_unknown_labels(before, document)
        try:
            if dry_run:
                planned = client.plan_change(before["id"], document)
            else:
                changed = client.change(before["id"], document)
        except Refused as refusal:
            raise sent.explain(refusal) from refusal
    if dry_run and as_json:
        output.print_json(planned)
    elif dry_run:
        output.show(render_predictions.change_plan(planned))
    elif as_json:
        output.print_json(changed)
    elif before["spec"] == changed["spec"]:
        output.print_text(f"{changed['id']} is as it was: it had these values already")
    else:
        limit = changed.get("limit_reached")
        when = f"now, after step {changed['step']}" if changed["running"]["workers"] else "as soon as it goes on"
        ends = f" and ends {when}: {limit}" if limit else ""
        output.print_text(
            f"{changed['id']} is changed{ends}; `optimus describe {changed['id']}` says from what to what"
        )


def _refuse_unknown_labels(job: Job, document: dict[str, Any]) -> None:
    """Raises `BadInput` for a label to take away that the job does not have: it is misspelled, most likely."""
    has = job["spec"].get("labels") or {}
    for name, value in document.get("labels", {}).items():
        if value is None and name not in has:
            known = f"it has {', '.join(sorted(has))}" if has else "it has none"
            raise BadInput(f"--unset labels.{name}: {job['id']} has no such label; {known}.")


set_fields = with_flags(_set_fields, CHANGING)


def retry(
    job: JobReference,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Asking again with the same key gives the same job.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Run an ended job again from the beginning: a new job with the same specification; prints its id.

    `optimus resume` goes on from the last checkpoint; `optimus submit --from` starts a new job with its parameters.
    """
    with connect(url) as client:
        again = client.retry(find_job(client, job)["id"], idempotency_key or str(uuid.uuid4()))
    if as_json:
        output.print_json(again)
    else:
        output.print_text(again["id"])


def delete(
    job: JobReference,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints",
            help="Also its directory (checkpoints, model, logs), and what is at its --checkpoint-url.",
        ),
    ] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete an ended job with its samples, events and decisions; they cannot be brought back."""
    with connect(url) as client:
        found = find_job(client, job)
        what = " and its checkpoints" if checkpoints else ""
        if is_final(found) and not yes:
            ask(
                f"Delete {found['id']} ({found['state']}, {wording.steps_told(found, found['step'])}){what}?", "deleted"
            )
        client.delete(found["id"], checkpoints=checkpoints)
    if as_json:
        output.print_json({"deleted": found["id"], "checkpoints": checkpoints})
    else:
        output.print_text(f"deleted {found['id']}{what}")


def lost_by_stops(client: Client, tasks: Collection[str]) -> str:
    """`ID loses 86 steps (3 min 05 s of work)` of each job with a worker among these tasks; may be empty."""
    # Those that start have processes already, which may have worked for longer than their first step takes.
    active = client.jobs({"state": ["queued", "running", "paused"]}, None) if tasks else iter(())
    there = (job for job in active if any(task.startswith(f"{job['id']}-worker-") for task in tasks))
    return "; ".join(f"{job['id']} loses {lost}" for job in there if (lost := job.get("lost_by_a_stop")))
