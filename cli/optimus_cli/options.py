"""Options and arguments that commands share, and shell completion of job ids."""

from __future__ import annotations

import math
import os
import re
import shlex
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from optimus_cli import background, output, usage_hints
from optimus_cli.client import Client
from optimus_cli.errors import CliError, Refused
from optimus_cli.job.flags import USUAL
from optimus_cli.show.limits import FIELDS
from optimus_client.configuration import place, stored
from optimus_contract.command import work_of

TOKEN_VARIABLE = "OPTIMUS_TOKEN"  # noqa: S105 -- the variable's name, not a token
CA_VARIABLE = "OPTIMUS_CA_CERT"
ca_file: ContextVar[str | None] = ContextVar("ca_file", default=None)
"""The file of certificates that `optimus --ca-cert` or OPTIMUS_CA_CERT named for this command."""
COMPLETION_TIMEOUT_SECONDS = 1.0
"""A shell that waits for completion feels broken after a second."""
MAX_COMPLETIONS = 200


def _stored_url(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Neither flag nor variable: the address that `optimus login` stored, if it stored one."""
    source = context.get_parameter_source(parameter.name or "")
    file = stored() if source is not None and source.name == "DEFAULT" else None
    return value if file is None else file.url


Url = Annotated[
    str,
    typer.Option("--url", envvar="OPTIMUS_URL", help="Where the service is.", show_default=True, callback=_stored_url),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


UsageError: Any = typer.BadParameter.__mro__[1]
"""typer has no name of its own for it, and which package it is in depends on typer's version."""


class Command(TyperCommand):
    """A command that refuses numbers that are none: Python reads `nan`, `inf` and `1e400` as floats.

    Its help groups options by their panels and cuts no flag's name, however narrow the terminal is.
    """

    usual: tuple[str, ...] = ()
    """What `--help` shows of many options; empty: all of them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, and the options by panel."""
        is_whole = not self.usual or ctx.meta.get(_HELP_ALL, False)
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or not (is_whole or parameter.param_type_name == "argument" or self._is_usual(parameter)):
                continue
            panel = "Arguments" if parameter.param_type_name == "argument" else "Options"
            sections.setdefault((is_whole and getattr(parameter, "rich_help_panel", None)) or panel, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`JOB`, `[JOB]` and `[JOB]...`, whichever version of typer writes them."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"^\{([^{}]*)\}|^\[(\[[^\[\]]*\](?:\.\.\.)?)\](?:\.\.\.)?$", r"\1\2", piece) for piece in pieces]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Refused as refusal:
            parameters: Any = self.params
            flags = {each.name: each.opts[0] for each in parameters if each.param_type_name == "option"}
            flags |= {field: f"--{flag}" for flag, field in FIELDS.items() if f"--{flag}" in flags.values()}
            raise refusal.naming(flags) from refusal

    def _is_usual(self, parameter: Any) -> bool:
        return any(name in self.usual for name in parameter.opts)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except UsageError as error:
            usage_hints.explain(error, ctx, words)
            raise
        parameter: Any  # of typer's own class or click's, as typer's version has it
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is not a finite number.", ctx, parameter)
        return rest


class Group(TyperGroup):
    """Commands of one kind. `help` is one of them, unlisted: `optimus help project set`, `optimus project help set`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            usage_hints.explain(error, ctx, words)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "help":
            wanted = [word for word in args[1:] if word not in ("--", "help")]
            if not wanted:
                output.print_text(ctx.get_help())
                raise typer.Exit
            args = [*wanted, "--help"]
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            usage_hints.explain_unknown(error, ctx, [word for word in args if not word.startswith("-")] or args)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by panel, each with its whole sentence."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(panel, []).append((name, command.get_short_help_str(limit=200)))
        for title, commands in sections.items():
            with formatter.section(title):
                formatter.write_dl(commands)


class ScriptCommand(Command):
    """A command that takes the command of a training script: what follows `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        script_command.set(None)
        if "--" in args:
            position = args.index("--")
            args, command = args[:position], args[position + 1 :]
            if not command:
                raise typer.BadParameter("give a command after --, such as -- torchrun train.py.", ctx)
            if (missing := _without_script(command, can_read=ctx.info_name == "track")) is not None:
                raise typer.BadParameter(missing, ctx)
            script_command.set(tuple(command))
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if "unexpected extra argument" in error.message:
                error.message += f" A training command follows --: optimus {ctx.info_name} -- python train.py"
            if error.message.startswith("No such option"):
                error.message += " Arguments of a script go behind its name, after --"
                error.message += "; those of a task are given by --set NAME=VALUE" * (ctx.info_name == "submit") + "."
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def _without_script(command: list[str], *, can_read: bool) -> str | None:
    """What is wrong with an interpreter that would read its program from the terminal. `can_read`: it may come through
    a pipe, to one that is told so."""
    program = Path(command[0]).name
    if len(command) == 1 and re.fullmatch(r"python[\d.]*|bash|sh", program):
        script = "train.py" if program.startswith("python") else "train.sh"
        return f"{command[0]} is given no script: write one behind it, such as -- {command[0]} {script}."
    if command[0] and not can_read and work_of(command).reads_code:
        reads = f"`{shlex.join(command)[:_TOLD]}` reads its program from the standard input"
        return f"{reads}, of which a job has none: name a script."
    return None


_TOLD = 200
"""Characters of a command that are told."""


class SubmitCommand(ScriptCommand):
    """`optimus submit`, which has a flag for each field of a specification."""

    usual = USUAL


script_command: ContextVar[tuple[str, ...] | None] = ContextVar("script_command", default=None)
"""What followed `--` on the command line."""


_HELP_ALL = "optimus help-all"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_HELP_ALL] = True
        output.print_text(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", callback=_show_all, is_eager=True, help="Show the options for every field of a job, and exit."
    ),
]


def connect(url: str) -> Client:
    """A client with the user's token, from the environment or the file of `optimus login`, which only goes to the
    address in it. There is no flag: command lines can be seen by others."""
    return Client(url, place(url).token, ca_file=ca_file.get(), may_start=background.is_starting)


def answering() -> str | None:
    """The address at which commands reach a service, if one answers there at once."""
    url, token = place()
    try:
        with Client(url, token, timeout_seconds=COMPLETION_TIMEOUT_SECONDS, ca_file=ca_file.get()) as client:
            next(iter(client.jobs({}, limit=1)), None)
    except CliError:
        return None
    return url


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """(id, what it is) of the jobs that the word may become; nothing when the service cannot be asked."""
    url, token = place()
    try:
        trusted = os.environ.get(CA_VARIABLE)
        with Client(url, token, timeout_seconds=COMPLETION_TIMEOUT_SECONDS, ca_file=trusted) as client:
            named = {"name": incomplete, "match": "start"} if incomplete else {}
            jobs = list(client.jobs(named, limit=MAX_COMPLETIONS))
    except CliError:
        return []
    return [(job["id"], job["state"]) for job in jobs if job["id"].startswith(incomplete)]


JobReference = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, its name (of several the newest active, else the newest), or a unique beginning of one.",
        autocompletion=complete_job,
    ),
]
OptionalJobReference = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Its id, its name (of several the newest active, else the newest), or a unique beginning of one.",
        autocompletion=complete_job,
    ),
]
JobReferences = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Ids, names or beginnings.", autocompletion=complete_job),
]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def ask(question: str, done: str) -> None:
    """Return when the answer is yes. Raises `CliError`: nothing was `done`."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        typer.echo(err=True)  # the question has left the cursor behind it
        raise CliError(f"Nothing was {done}: nobody answered; give --yes where nobody can.") from error
    if not agreed:
        raise CliError(f"Nothing was {done}.")
