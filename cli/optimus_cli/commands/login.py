"""`optimus login` and `optimus logout`: which service commands and scripts speak to when nothing else is said."""

from __future__ import annotations

import os
import sys
import time
from getpass import getpass
from typing import Annotated

import typer

from optimus_cli import output
from optimus_cli.client import Client
from optimus_cli.errors import BadInput
from optimus_cli.options import TOKEN_VARIABLE, ca_file
from optimus_client.configuration import store, stored

Address = Annotated[str, typer.Argument(metavar="URL", help="Where the service is.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Ask the service whether it takes the token.")]
Sso = Annotated[
    bool, typer.Option("--sso", help="Sign in with the service's OpenID provider, in a browser on any device.")
]
_SLOWER_SECONDS = 5.0
"""By how much the provider wants longer pauses between questions that come too often (RFC 8628, section 3.5)."""


def login(url: Address, check: Check = True, sso: Sso = False) -> None:
    """Store a service's address and your token for later commands and for optimus_client.

    The token is that of OPTIMUS_TOKEN, or else is asked for, or read from standard input; an empty one is none. With
    --sso it comes from a sign-in. It is written to ~/.config/optimus/config.json, which only you can read. Flags and
    variables come before that file.
    """
    token = _signed_in(url) if sso else os.environ.get(TOKEN_VARIABLE) or _asked()
    if not token.isascii() or not token.isprintable():
        raise BadInput("the token has characters that cannot be in one")
    with Client(url, token or None, ca_file=ca_file.get()) as client:
        name = client.whoami()["name"] if check else None
        path = store(client.url, token or None)
    output.say(f"{client.url} is stored in {path}." + ("" if name is None else f" You are {name}."))
    if sso and os.environ.get(TOKEN_VARIABLE):
        output.say(f"Warning: commands use the token of {TOKEN_VARIABLE} as long as that is set.")


def logout() -> None:
    """Revoke the token that `optimus login` stored, and forget it. The service's address stays."""
    place = stored()
    if place is None or place.token is None:
        raise BadInput("no token is stored: nothing to sign out from")
    with Client(place.url, place.token, ca_file=ca_file.get()) as client:
        client.sign_out()
    store(place.url, None)
    output.say(f"Signed out from {place.url}.")


def _signed_in(url: str) -> str:
    """The token that the service gives after a sign-in in a browser."""
    with Client(url, None, ca_file=ca_file.get()) as client:
        begun = client.start_sign_in()
        output.say(f"Open {begun['verification_uri']} and enter the code {begun['user_code']}")
        if begun["verification_uri_complete"]:
            output.say(f"or open {begun['verification_uri_complete']}")
        pause, ends_at = begun["interval_seconds"], time.monotonic() + begun["expires_seconds"]
        while time.monotonic() < ends_at:
            found = client.sign_in_progress(begun["device_code"])
            if found["made"] is not None:
                return found["made"]["secret"]
            pause += _SLOWER_SECONDS if found["slow_down"] else 0.0
            time.sleep(pause)
    raise BadInput("nobody signed in in time: start again")


def _asked() -> str:
    if sys.stdin.isatty():
        return getpass("Token: ").strip()
    return sys.stdin.readline().strip()
