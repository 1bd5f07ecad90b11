"""`optimus study`: what logged runs say about another network, in time and in money."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optimus_cli import output
from optimus_cli.options import AsJson

DEFAULT_REPORT = Path("study.html")
GIGABIT_BYTES = 125e6

Logs = Annotated[Path, typer.Argument(metavar="LOGS.csv", help="One row per run and epoch.", show_default=False)]


def study(
    logs: Logs,
    report: Annotated[Path, typer.Option("--output", "-o", help="Report: .html or .md.")] = DEFAULT_REPORT,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help="What a column is called in your file. Roles: layers, gpu, epoch, train_loss and, where there "
            "are any, train_accuracy, seconds, parameters.",
        ),
    ] = None,
    held_out: Annotated[
        int | None, typer.Option(help="The size to predict.  [default: 50 if there is one, else the largest]")
    ] = None,
    target_accuracy: Annotated[float, typer.Option(min=0, max=1, help="Training accuracy to reach.")] = 0.92,
    target_loss: Annotated[float | None, typer.Option(help="Training loss to reach instead.")] = None,
    first_epochs: Annotated[int, typer.Option(min=0, help="Epochs of the new run that may be looked at.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Global batch size of the runs.")] = 128,
    examples: Annotated[int, typer.Option(min=1, help="Training examples of one epoch.")] = 50_000,
    gigabits: Annotated[float, typer.Option(min=0.001, help="Network per node, Gbit/s each way.")] = 10.0,
    price: Annotated[
        list[str] | None, typer.Option(metavar="GPU=USD", help="Price of one GPU hour; `server=USD` for a server's.")
    ] = None,
    speeds: Annotated[
        Path | None,
        typer.Option(
            metavar="SPEEDS.csv",
            help="Measured speeds of the new network: workers, servers, steps_per_second and, if you like, gpu. "
            "Times are then by these instead of by arithmetic.",
        ),
    ] = None,
    speeds_model: Annotated[str | None, typer.Option(help="Which one, if SPEEDS.csv has a column model.")] = None,
    max_workers: Annotated[int, typer.Option(min=1, max=1024, help="Largest number of workers.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Study a table of training logs: fits, a forecast for another network, time, cost and scaling.

    Writes a report with plots; with --json, prints every figure and writes the report only when --output is given.
    """
    # numpy, scipy and matplotlib take most of a second to import; no other command needs them.
    from optimus_cli.study.findings import Options, as_json_document, run_study
    from optimus_cli.study.reading import parse_columns, parse_prices, read_runs, read_speeds

    runs = read_runs(logs, parse_columns(column or []))
    options = Options(
        target_accuracy=target_accuracy,
        target_loss=target_loss,
        held_out=held_out,
        first_epochs=first_epochs,
        batch_size=batch_size,
        examples=examples,
        bytes_per_second=gigabits * GIGABIT_BYTES,
        prices=parse_prices(price or [], {run.gpu for run in runs}),
        max_workers=max_workers,
        speeds=read_speeds(speeds, speeds_model) if speeds is not None else {},
    )
    findings = run_study(runs, options)
    if not as_json or report != DEFAULT_REPORT:
        from optimus_cli.study.document import compose
        from optimus_cli.study.report import write

        for path in write(compose(findings, logs.name), report):
            output.say(f"wrote {path}")
    if as_json:
        output.print_json(as_json_document(findings))
