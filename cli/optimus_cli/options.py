"""Options and arguments that commands share, and shell completion of job ids."""

from __future__ import annotations

import math
import os
from contextvars import ContextVar
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from optimus_cli import background
from optimus_cli.client import DEFAULT_URL, Client
from optimus_cli.errors import CliError

TOKEN_VARIABLE = "OPTIMUS_TOKEN"  # noqa: S105 -- the variable's name, not a token
CA_VARIABLE = "OPTIMUS_CA_CERT"
ca_file: ContextVar[str | None] = ContextVar("ca_file", default=None)
"""The file of certificates that `optimus --ca-cert` or OPTIMUS_CA_CERT named for this command."""
COMPLETION_TIMEOUT_SECONDS = 1.0
"""A shell that waits for completion feels broken after a second."""
MAX_COMPLETIONS = 200

Url = Annotated[str, typer.Option("--url", envvar="OPTIMUS_URL", help="Where the service is.", show_default=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


class Command(TyperCommand):
    """A command that refuses numbers that are none: Python reads `nan`, `inf` and `1e400` as floats."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        parameter: Any  # of typer's own class or click's, as typer's version has it
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is not a finite number.", ctx, parameter)
        return rest


def connect(url: str) -> Client:
    """A client with the user's token, which is only read from the environment: command lines can be seen by others."""
    return Client(url, os.environ.get(TOKEN_VARIABLE), ca_file=ca_file.get(), may_start=background.is_starting)


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """(id, what it is) of the jobs that the word may become; nothing when the service cannot be asked."""
    url = os.environ.get("OPTIMUS_URL", DEFAULT_URL)
    try:
        token, trusted = os.environ.get(TOKEN_VARIABLE), os.environ.get(CA_VARIABLE)
        with Client(url, token, timeout_seconds=COMPLETION_TIMEOUT_SECONDS, ca_file=trusted) as client:
            named = {"name": incomplete, "match": "start"} if incomplete else {}
            jobs = list(client.jobs(named, limit=MAX_COMPLETIONS))
    except CliError:
        return []
    return [(job["id"], job["state"]) for job in jobs if job["id"].startswith(incomplete)]


JobReference = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's id, or a unique name or beginning.", autocompletion=complete_job)
]
JobReferences = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Ids, names or beginnings.", autocompletion=complete_job),
]
