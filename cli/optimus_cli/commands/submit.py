"""`optimus submit`: a job from a file, from flags, or from both."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated, Literal

import typer

from optimus_cli import output, render_plan, watching
from optimus_cli.client import DEFAULT_URL
from optimus_cli.commands.watch import watch_to_the_end
from optimus_cli.errors import Refused
from optimus_cli.jobfile import read_job_file
from optimus_cli.options import AsJson, Url, connect
from optimus_cli.specification import Flag, Specification, assemble, parse_assignments, parse_target

CONVERGENCE = "Convergence (the first that holds ends the job)"
SIZE = "Size and resources"


# Long, because typer wants a parameter per flag; it only says which flag sets which field.
def submit(
    file: Annotated[Path | None, typer.Argument(help="A YAML or JSON file; flags override its fields.")] = None,
    name: Annotated[str | None, typer.Option(help="Default: made from the task's.")] = None,
    task: Annotated[str | None, typer.Option(help="MODULE:FUNCTION that returns a TrainingTask.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An argument of the task; repeatable.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Whom the job belongs to.")] = None,
    mode: Annotated[Literal["sync", "async"] | None, typer.Option(help="How updates are combined.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Global batch size; default: the task's.")] = None,
    loss_decrease: Annotated[
        float | None, typer.Option(help="Smallest loss decrease per epoch (0.01: 1 %).", rich_help_panel=CONVERGENCE)
    ] = None,
    patience_epochs: Annotated[
        int | None, typer.Option(help="Epochs in a row for --loss-decrease.", rich_help_panel=CONVERGENCE)
    ] = None,
    target_loss: Annotated[float | None, typer.Option(rich_help_panel=CONVERGENCE)] = None,
    max_epochs: Annotated[float | None, typer.Option(rich_help_panel=CONVERGENCE)] = None,
    max_steps: Annotated[int | None, typer.Option(rich_help_panel=CONVERGENCE)] = None,
    max_seconds: Annotated[float | None, typer.Option(rich_help_panel=CONVERGENCE)] = None,
    target_metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME>=VALUE",
            help="A figure of the task's evaluation, such as 'test_accuracy>=0.95' or 'perplexity<=20'.",
            rich_help_panel=CONVERGENCE,
        ),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Money, at the service's prices.", rich_help_panel=CONVERGENCE)
    ] = None,
    evaluate_epochs: Annotated[
        float | None, typer.Option(help="Evaluate every so many epochs.", rich_help_panel=CONVERGENCE)
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="Of gradients on the wire: none, fp16, bf16, int8 or topk.")
    ] = None,
    workers_min: Annotated[int | None, typer.Option(rich_help_panel=SIZE)] = None,
    workers_max: Annotated[int | None, typer.Option(rich_help_panel=SIZE)] = None,
    servers_min: Annotated[int | None, typer.Option(rich_help_panel=SIZE)] = None,
    servers_max: Annotated[int | None, typer.Option(rich_help_panel=SIZE)] = None,
    worker_cpu: Annotated[float | None, typer.Option(help="Cores of one worker.", rich_help_panel=SIZE)] = None,
    worker_memory: Annotated[str | None, typer.Option(help="Such as 512Mi or 2Gi.", rich_help_panel=SIZE)] = None,
    worker_gpus: Annotated[int | None, typer.Option(rich_help_panel=SIZE)] = None,
    gpu_types: Annotated[
        str | None,
        typer.Option(metavar="TYPE,...", help="GPU types that will do; default: any.", rich_help_panel=SIZE),
    ] = None,
    server_cpu: Annotated[float | None, typer.Option(help="Cores of one server.", rich_help_panel=SIZE)] = None,
    server_memory: Annotated[str | None, typer.Option(help="Such as 512Mi or 2Gi.", rich_help_panel=SIZE)] = None,
    priority: Annotated[float | None, typer.Option(help="Multiplies the job's gain.")] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="When it should be done, such as 2026-12-24T18:00:00Z.")
    ] = None,
    deadline_seconds: Annotated[float | None, typer.Option(help="The same, counted from the submission.")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Checkpoint period.")] = None,
    working_directory: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="Where tasks run and import from; default: here, if the task's module is here.",
        ),
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="A variable of the tasks; repeatable.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key gives the same job.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Submit nothing; say what the job would get, cost and do to others.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it has ended.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Submit a training job and print its id.

    With --watch: exit code 1 if the job does not succeed. With --watch --json: one line of JSON per look.
    """
    flags = [
        Flag("--name", ("name",), name),
        Flag("--task", ("task",), task),
        Flag("--set", ("task_args",), parse_assignments("--set", settings or [], typed=True)),
        Flag("--project", ("project",), project),
        Flag("--mode", ("mode",), mode),
        Flag("--batch-size", ("global_batch_size",), batch_size),
        Flag("--loss-decrease", ("convergence", "loss_decrease", "below"), loss_decrease),
        Flag("--patience-epochs", ("convergence", "loss_decrease", "patience_epochs"), patience_epochs),
        Flag("--target-loss", ("convergence", "target_loss"), target_loss),
        Flag("--max-epochs", ("convergence", "max_epochs"), max_epochs),
        Flag("--max-steps", ("convergence", "max_steps"), max_steps),
        Flag("--max-seconds", ("convergence", "max_seconds"), max_seconds),
        Flag("--target-metric", ("convergence", "target_metric"), parse_target("--target-metric", target_metric)),
        Flag("--max-cost", ("convergence", "max_cost"), max_cost),
        Flag("--evaluate-epochs", ("evaluate_epochs",), evaluate_epochs),
        Flag("--compression", ("compression",), compression),
        Flag("--workers-min", ("workers", "min"), workers_min),
        Flag("--workers-max", ("workers", "max"), workers_max),
        Flag("--servers-min", ("servers", "min"), servers_min),
        Flag("--servers-max", ("servers", "max"), servers_max),
        Flag("--worker-cpu", ("workers", "resources", "cpu"), worker_cpu),
        Flag("--worker-memory", ("workers", "resources", "memory_bytes"), worker_memory),
        Flag("--worker-gpus", ("workers", "resources", "gpus"), worker_gpus),
        Flag("--server-cpu", ("servers", "resources", "cpu"), server_cpu),
        Flag("--server-memory", ("servers", "resources", "memory_bytes"), server_memory),
        Flag("--gpu-types", ("gpu_types",), gpu_types and [kind.strip() for kind in gpu_types.split(",")]),
        Flag("--priority", ("priority",), priority),
        Flag("--deadline", ("deadline",), deadline),
        Flag("--deadline-seconds", ("deadline_seconds",), deadline_seconds),
        Flag("--seed", ("seed",), seed),
        Flag("--checkpoint-seconds", ("checkpoint_seconds",), checkpoint_seconds),
        Flag("--working-directory", ("working_directory",), working_directory and str(working_directory)),
        Flag("--env", ("environment",), parse_assignments("--env", environment or [], typed=False)),
    ]
    specification = assemble(read_job_file(file) if file else None, flags, Path.cwd())
    if dry_run:
        preview(specification, url, as_json=as_json)
        return
    send(specification, idempotency_key or str(uuid.uuid4()), url, watch=watch, as_json=as_json)


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
        output.show(render_plan.plan(plan))


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
