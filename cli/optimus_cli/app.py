"""The `optimus` command: its sub-commands, and what becomes of errors."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import version as distribution_version
from typing import Annotated, Any

import typer

from optimus_cli import hints, output
from optimus_cli.commands import (
    changes,
    demo,
    jobs,
    logs,
    node,
    people,
    predict,
    project,
    secrets,
    serve,
    simulate,
    study,
    submit,
    track,
)
from optimus_cli.errors import BadInput, CliError, FieldError
from optimus_cli.options import CA_VARIABLE, Command, Group, ScriptCommand, SubmitCommand, UsageError, ca_file

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


class _Commands(Group):
    """The one place where failures become a message on stderr and an exit code; no traceback is ever shown.

    With --json the message is a JSON document, usage errors included; without it those stay typer's own.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = "--json" in args  # the sub-command's own; asked here, since its flags may be what is wrong
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            self._tell_as_json(error, as_json=ctx.obj)
            raise

    def _tell_as_json(self, error: Any, *, as_json: bool) -> None:
        """Raises `typer.Exit` where the usage error was told as JSON."""
        if as_json:
            _tell(error.format_message(), BadInput.exit_code, (), as_json=True)
            raise typer.Exit(BadInput.exit_code) from error

    def invoke(self, ctx: Any) -> Any:
        as_json = bool(ctx.obj)
        try:
            return super().invoke(ctx)
        except CliError as error:
            _tell(str(error), error.exit_code, error.fields, as_json=as_json)
            raise typer.Exit(error.exit_code) from error
        except UsageError as error:
            error.message = _plain(error.message)
            self._tell_as_json(error, as_json=as_json)
            raise
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except UnicodeEncodeError as error:
            text = error.object[error.start : error.end]
            _tell(f"{text!r} is not text that UTF-8 can say", BadInput.exit_code, (), as_json=as_json)
            raise typer.Exit(BadInput.exit_code) from error
        except OSError as error:
            what = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
            _tell(what or str(error), CliError.exit_code, (), as_json=as_json)
            raise typer.Exit(CliError.exit_code) from error
        except Exception as error:
            _tell(_unexpected(error), CliError.exit_code, (), as_json=as_json)
            raise typer.Exit(CliError.exit_code) from error


def _tell(message: str, exit_code: int, fields: Sequence[FieldError], *, as_json: bool) -> None:
    if not as_json:
        output.say(f"Error: {message}")
        return
    named = [{"field": field.field, "message": field.message} for field in fields]
    output.say_json({"error": {"message": message, "exit_code": exit_code, "errors": named}})


_WORDED = {
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number.",
    "Input should be a valid integer, got a number with a fractional part": "must be a whole number.",
    "Input should be a valid number, unable to parse string as a number": "must be a number.",
}


def _plain(message: str) -> str:
    """Typer's message without the words of the library that reads values for it."""
    message = message.removeprefix("Value error, ")
    for theirs, ours in _WORDED.items():
        message = message.replace(theirs, ours)
    before, found, bounds = message.partition("Input should be ")
    return f"{before}must be {bounds.removesuffix('.')}." if found else message


def _unexpected(error: Exception) -> str:
    """One line about a mistake of ours; its traceback goes to a file, for a report."""
    said = f"{type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", prefix="optimus-error-", suffix=".txt", delete=False
        ) as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return f"{said}\nThis is a bug in Optimus; please report it."
    return f"{said}\nThis is a bug in Optimus; please report it with {file.name}."


app = typer.Typer(
    name="optimus",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Optimus: a scheduler for deep-learning clusters that learns each job while it runs.",
)

SERVICE = "Run the service"
JOBS = hints.JOBS_PANEL
PEOPLE = "People"
app.command(cls=SubmitCommand, rich_help_panel=JOBS)(submit.submit)
app.command(cls=ScriptCommand, rich_help_panel=JOBS)(track.track)
app.add_typer(project.app, name="project", rich_help_panel="Cluster")
app.command("list", cls=Command, rich_help_panel=JOBS)(jobs.list_jobs)
app.command(cls=Command, rich_help_panel=JOBS)(jobs.queue)
app.command(cls=Command, rich_help_panel=JOBS)(jobs.describe)
app.command(cls=Command, rich_help_panel=JOBS)(jobs.explain)
app.command(cls=Command, rich_help_panel=JOBS)(jobs.watch)
app.command(cls=Command, rich_help_panel=JOBS)(logs.logs)
app.command(cls=Command, rich_help_panel=JOBS)(predict.predict)
app.command(cls=Command, rich_help_panel=JOBS)(predict.promises)
app.command(cls=Command, rich_help_panel=JOBS)(jobs.cancel)
app.command(cls=Command, rich_help_panel=JOBS)(changes.pause)
app.command(cls=Command, rich_help_panel=JOBS)(changes.resume)
app.command("set", cls=Command, rich_help_panel=JOBS)(changes.set_fields)
app.command(cls=Command, rich_help_panel=JOBS)(changes.retry)
app.command(cls=Command, rich_help_panel=JOBS)(changes.delete)
app.command(cls=Command, rich_help_panel="Cluster")(node.nodes)
app.add_typer(node.app, name="node", rich_help_panel="Cluster")
app.command(cls=Command, rich_help_panel="Offline")(study.study)
app.command(cls=Command, rich_help_panel=SERVICE)(serve.serve)
app.command(cls=Command, rich_help_panel=SERVICE)(people.login)
app.command(cls=Command, rich_help_panel=SERVICE)(people.logout)
app.command(cls=Command, rich_help_panel=PEOPLE)(people.whoami)
app.add_typer(people.user_app, name="user", rich_help_panel=PEOPLE)
app.add_typer(people.token_app, name="token", rich_help_panel=PEOPLE)
app.command(cls=Command, rich_help_panel=PEOPLE)(people.audit)
app.command(cls=Command, rich_help_panel=PEOPLE)(project.usage)
app.command(cls=Command, rich_help_panel=SERVICE)(serve.stop)
app.add_typer(serve.database_app, name="db", rich_help_panel=SERVICE)
app.add_typer(secrets.app, name="secrets", rich_help_panel=SERVICE)
app.command(cls=Command, rich_help_panel=SERVICE)(demo.demo)
app.command(cls=Command, rich_help_panel="Experiments")(simulate.simulate)
app.command(cls=Command, rich_help_panel="Experiments")(simulate.bound)
app.command("export-trace", cls=Command, rich_help_panel="Experiments")(simulate.export_trace)


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
