"""`optimus login`: which service commands and scripts speak to when nothing else is said."""

from __future__ import annotations

import os
import sys
from getpass import getpass
from typing import Annotated

import typer

from optimus_cli import output
from optimus_cli.client import Client
from optimus_cli.errors import BadInput
from optimus_cli.options import TOKEN_VARIABLE, ca_file
from optimus_client.configuration import store

Address = Annotated[str, typer.Argument(metavar="URL", help="Where the service is.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Ask the service whether it takes the token.")]


def login(url: Address, check: Check = True) -> None:
    """Store a service's address and your token for later commands and for optimus_client.

    The token is that of OPTIMUS_TOKEN, or else is asked for, or read from standard input; an empty one is none. It is
    written to ~/.config/optimus/config.json, which only you can read. Flags and variables come before that file.
    """
    token = os.environ.get(TOKEN_VARIABLE) or _asked()
    if not token.isascii() or not token.isprintable():
        raise BadInput("the token has characters that cannot be in one")
    with Client(url, token or None, ca_file=ca_file.get()) as client:
        name = client.whoami()["name"] if check else None
        path = store(client.url, token or None)
    output.say(f"{client.url} is stored in {path}." + ("" if name is None else f" You are {name}."))


def _asked() -> str:
    if sys.stdin.isatty():
        return getpass("Token: ").strip()
    return sys.stdin.readline().strip()
