"""The `optimus` command: its sub-commands, and what becomes of errors."""

from __future__ import annotations

from importlib.metadata import version as distribution_version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from optimus_cli import output
from optimus_cli.commands import (
    cluster,
    db,
    demo,
    export_trace,
    jobs,
    logs,
    predict,
    project,
    serve,
    simulate,
    study,
    submit,
    watch,
)
from optimus_cli.errors import CliError
from optimus_cli.options import CA_VARIABLE, ca_file

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


class _Commands(TyperGroup):
    """Shows expected failures as one message and exits with their code; usage errors stay typer's own (code 2)."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            output.say(f"Error: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="optimus",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Optimus: a scheduler for deep-learning clusters that learns each job while it runs.",
)

SERVICE = "Run the service"
JOBS = "Jobs"
app.command(rich_help_panel=JOBS)(submit.submit)
app.add_typer(project.app, name="project", rich_help_panel="Cluster")
app.command("list", rich_help_panel=JOBS)(jobs.list_jobs)
app.command(rich_help_panel=JOBS)(jobs.describe)
app.command(rich_help_panel=JOBS)(jobs.explain)
app.command(rich_help_panel=JOBS)(watch.watch)
app.command(rich_help_panel=JOBS)(logs.logs)
app.command(rich_help_panel=JOBS)(predict.predict)
app.command(rich_help_panel=JOBS)(jobs.cancel)
app.command(rich_help_panel=JOBS)(jobs.resume)
app.command(rich_help_panel="Cluster")(cluster.nodes)
app.command(rich_help_panel="Offline")(study.study)
app.command(rich_help_panel=SERVICE)(serve.serve)
app.add_typer(db.app, name="db", rich_help_panel=SERVICE)
app.command(rich_help_panel=SERVICE)(demo.demo)
app.command(rich_help_panel="Experiments")(simulate.simulate)
app.command("export-trace", rich_help_panel="Experiments")(export_trace.export_trace)


def _print_version(wanted: bool) -> None:
    if wanted:
        output.print_text(distribution_version("optimus-scheduler"))
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    ca_cert: Annotated[
        str | None,
        typer.Option(
            "--ca-cert",
            envvar=CA_VARIABLE,
            metavar="FILE",
            help="Certificates (PEM) of authorities that the service's https is trusted by, beside the usual ones.",
        ),
    ] = None,
) -> None:
    """Optimus: a scheduler for deep-learning clusters that learns each job while it runs."""
    ca_file.set(ca_cert)
