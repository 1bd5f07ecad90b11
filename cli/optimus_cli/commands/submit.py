"""`optimus submit`: a job from a file, from flags, or from both."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from optimus_cli import output, render_plan, watching
from optimus_cli.bodies import Job
from optimus_cli.client import DEFAULT_URL
from optimus_cli.commands.watch import watch_to_the_end
from optimus_cli.errors import Refused
from optimus_cli.jobfile import read_job_file
from optimus_cli.options import AsJson, Url, connect
from optimus_cli.resolve import find_job
from optimus_cli.specification import Flag, Specification, assemble, parse_assignments, parse_elastic, parse_target

CONVERGENCE = "Convergence (the first that holds ends the job)"
SIZE = "Size and resources"
TRAINING = "How it trains (docs/training.md)"
COMPUTING = "How workers compute"


# Long, because typer wants a parameter per flag; it only says which flag sets which field.
def submit(
    file: Annotated[Path | None, typer.Argument(help="A YAML or JSON file; flags override its fields.")] = None,
    name: Annotated[str | None, typer.Option(help="Default: made from the task's.")] = None,
    task: Annotated[str | None, typer.Option(help="MODULE:FUNCTION that returns a TrainingTask.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An argument of the task; repeatable.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Whom the job belongs to.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Global batch size; default: the task's.")] = None,
    mode: Annotated[
        Literal["sync", "async"] | None, typer.Option(help="How updates are combined.", rich_help_panel=TRAINING)
    ] = None,
    architecture: Annotated[
        Literal["ps", "allreduce"] | None,
        typer.Option(help="Parameter servers, or workers that sum among themselves.", rich_help_panel=TRAINING),
    ] = None,
    scaling: Annotated[
        Literal["strong", "weak"] | None,
        typer.Option(help="weak: the batch grows with the workers.", rich_help_panel=TRAINING),
    ] = None,
    warmup_epochs: Annotated[
        float | None, typer.Option(help="Of the learning rate, with --scaling weak.", rich_help_panel=TRAINING)
    ] = None,
    elastic_batch: Annotated[
        str | None,
        typer.Option(
            metavar="MINIMUM:MAXIMUM:PER_PASS",
            help="Let the scheduler choose the batch (all-reduce); PER_PASS: what one worker computes at once.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    max_gradient_norm: Annotated[
        float | None, typer.Option(help="Clip gradients to this norm; default: the task's.", rich_help_panel=TRAINING)
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(
            help="Of gradients on the wire: none, fp16, bf16; to servers also int8, topk; among workers also powersgd.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    compression_keep: Annotated[
        float | None, typer.Option(help="Fraction of values that topk sends.", rich_help_panel=TRAINING)
    ] = None,
    gradient_statistics: Annotated[
        bool | None,
        typer.Option(
            "--gradient-statistics/--no-gradient-statistics",
            help="Measure the noise scale of the gradients.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=TRAINING)] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option(help="What they use.", rich_help_panel=COMPUTING)
    ] = None,
    precision: Annotated[
        Literal["float32", "bf16"] | None, typer.Option(help="Of forward passes.", rich_help_panel=COMPUTING)
    ] = None,
    compile_model: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="With torch.compile.", rich_help_panel=COMPUTING),
    ] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--no-deterministic", help="The same numbers each time.", rich_help_panel=COMPUTING
        ),
    ] = None,
    overlap: Annotated[
        bool | None,
        typer.Option(
            "--overlap/--no-overlap", help="Push during the backward pass (the default).", rich_help_panel=COMPUTING
        ),
    ] = None,
    hang_seconds: Annotated[
        float | None,
        typer.Option(help="Replace a worker that takes longer for a micro-batch.", rich_help_panel=COMPUTING),
    ] = None,
    loss_decrease: Annotated[
        float | None, typer.Option(help="Smallest loss decrease per epoch (0.01: 1 %).", rich_help_panel=CONVERGENCE)
    ] = None,
    relative_to: Annotated[
        Literal["previous", "maximum"] | None,
        typer.Option(help="What --loss-decrease is a fraction of.", rich_help_panel=CONVERGENCE),
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
    priority: Annotated[float | None, typer.Option(help="Multiplies the job's gain; 0.01 to 1000.")] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="When it should be done, such as 2026-12-24T18:00:00Z.")
    ] = None,
    deadline_seconds: Annotated[float | None, typer.Option(help="The same, counted from the submission.")] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Checkpoint period.")] = None,
    retries: Annotated[
        int | None, typer.Option(help="Go on from the last checkpoint so often after an error of the code (2).")
    ] = None,
    checkpoint_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where checkpoints go, such as s3://bucket/checkpoints.")
    ] = None,
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
    from_job: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="JOB",
            help="Start with the parameters of this job's last checkpoint; without FILE and --task: with its "
            "specification, too.",
        ),
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
    origin = None if from_job is None else look_up(from_job, url)
    flags = [
        Flag("--name", ("name",), name),
        Flag("--task", ("task",), task),
        Flag("--set", ("task_args",), parse_assignments("--set", settings or [], typed=True)),
        Flag("--project", ("project",), project),
        Flag("--batch-size", ("global_batch_size",), batch_size),
        Flag("--mode", ("mode",), mode),
        Flag("--architecture", ("architecture",), architecture),
        Flag("--scaling", ("scaling",), scaling),
        Flag("--warmup-epochs", ("warmup_epochs",), warmup_epochs),
        Flag("--elastic-batch", ("elastic_batch",), parse_elastic("--elastic-batch", elastic_batch)),
        Flag("--max-gradient-norm", ("max_gradient_norm",), max_gradient_norm),
        Flag("--compression", ("compression",), compression),
        Flag("--compression-keep", ("compression_keep",), compression_keep),
        Flag("--gradient-statistics", ("gradient_statistics",), gradient_statistics),
        Flag("--seed", ("seed",), seed),
        Flag("--device", ("device",), device),
        Flag("--precision", ("precision",), precision),
        Flag("--compile", ("compile",), compile_model),
        Flag("--deterministic", ("deterministic",), deterministic),
        Flag("--overlap", ("overlap",), overlap),
        Flag("--hang-seconds", ("hang_seconds",), hang_seconds),
        Flag("--loss-decrease", ("convergence", "loss_decrease", "below"), loss_decrease),
        Flag("--relative-to", ("convergence", "loss_decrease", "relative_to"), relative_to),
        Flag("--patience-epochs", ("convergence", "loss_decrease", "patience_epochs"), patience_epochs),
        Flag("--target-loss", ("convergence", "target_loss"), target_loss),
        Flag("--max-epochs", ("convergence", "max_epochs"), max_epochs),
        Flag("--max-steps", ("convergence", "max_steps"), max_steps),
        Flag("--max-seconds", ("convergence", "max_seconds"), max_seconds),
        Flag("--target-metric", ("convergence", "target_metric"), parse_target("--target-metric", target_metric)),
        Flag("--max-cost", ("convergence", "max_cost"), max_cost),
        Flag("--evaluate-epochs", ("evaluate_epochs",), evaluate_epochs),
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
        Flag("--retries", ("retries",), retries),
        Flag("--checkpoint-seconds", ("checkpoint_seconds",), checkpoint_seconds),
        Flag("--checkpoint-url", ("checkpoint_url",), checkpoint_url),
        Flag("--working-directory", ("working_directory",), working_directory and str(working_directory)),
        Flag("--from", ("from_job",), origin and origin["id"]),
        Flag("--env", ("environment",), parse_assignments("--env", environment or [], typed=False)),
    ]
    like = None if origin is None or file is not None or task is not None else specification_like(origin)
    specification = assemble(read_job_file(file) if file else None, flags, Path.cwd(), like)
    if dry_run:
        preview(specification, url, as_json=as_json)
        return
    send(specification, idempotency_key or str(uuid.uuid4()), url, watch=watch, as_json=as_json)


def specification_like(origin: Job) -> dict[str, Any]:
    """Of a job that resembles this one, whose deadline was its own."""
    return {name: value for name, value in origin["spec"].items() if name not in ("deadline", "deadline_seconds")}


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
