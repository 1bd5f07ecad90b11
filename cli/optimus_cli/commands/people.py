"""`optimus login`, `logout`, `user`, `token`, `whoami`, `audit`: with which token, who may do what, and who did."""

from __future__ import annotations

import os
import sys
import time
from getpass import getpass
from typing import Annotated, Any, Literal

import typer

from optimus_cli import output
from optimus_cli.bodies import User
from optimus_cli.client import DEFAULT_URL, Client
from optimus_cli.errors import BadInput
from optimus_cli.options import TOKEN_VARIABLE, AsJson, Command, Group, Url, Yes, ask, ca_file, connect
from optimus_cli.show import limits, render_people
from optimus_cli.show.limits import MaxPriority, MaxRequests, MaxWaiting, MaxWorkers, WorkersTogether
from optimus_client.configuration import store, stored

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the user.")]
RoleName = Literal["administrator", "operator"]
Member = Annotated[
    list[str] | None,
    typer.Option("--member", metavar="PROJECT", help="Reads it, submits, changes own jobs; repeatable."),
]
Viewer = Annotated[list[str] | None, typer.Option("--viewer", metavar="PROJECT", help="Reads it; repeatable.")]
Roles = Annotated[RoleName | None, typer.Option("--role", help="For all projects.")]
IsService = Annotated[bool, typer.Option("--service", help="A program, not a person.")]
DAY_SECONDS = 86_400.0

user_app = typer.Typer(cls=Group, no_args_is_help=True, help="Users: people and programs, and what they may do.")
token_app = typer.Typer(cls=Group, no_args_is_help=True, help="Tokens: what users show to the service.")


def whoami(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Say who you are to the service, and what your token is good for."""
    with connect(url) as client:
        found = client.whoami()
    output.print_json(found) if as_json else output.show(render_people.caller(found))


def audit(
    who: Annotated[str | None, typer.Option(help="Only what this user did.")] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to this job, project, user or token.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest first.")] = 50,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show who changed what. For operators and administrators."""
    filters = {key: value for key, value in {"who": who, "target": target}.items() if value}
    with connect(url) as client:
        entries = client.audit(filters, output.enough(limit))
    if as_json:
        output.print_json({"entries": entries[:limit], "more": output.is_cut(entries, limit)})
        return
    output.show(render_people.audit_list(entries[:limit]))
    output.say_what_is_left(entries, limit, "the newest", "entry", "--limit N")


# --- users -----------------------------------------------------------------------------------------------------------


@user_app.command("list", cls=Command)
def list_users(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all users."""
    with connect(url) as client:
        users = client.users()
    output.print_json({"users": users}) if as_json else output.show(render_people.user_list(users))


@user_app.command("create", cls=Command)
def create_user(
    name: Name,
    member: Member = None,
    viewer: Viewer = None,
    role: Roles = None,
    service: IsService = False,
    max_waiting: MaxWaiting = None,
    max_workers: MaxWorkers = None,
    workers_together: WorkersTogether = None,
    max_priority: MaxPriority = None,
    max_requests: MaxRequests = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a user. It can do nothing before it has a token: `optimus token create --user NAME`."""
    rights = _rights("service" if service else "person", member, viewer, role)
    own = limits.given(max_waiting, max_workers, workers_together, max_priority, max_requests)
    with connect(url) as client:
        made = client.create_user(name, rights | ({"limits": own} if own else {}))
    if as_json:
        output.print_json(made)
    elif render_people.rights(made):
        output.print_text(f"{name} is a user: {render_people.rights(made)}")
    else:
        output.print_text(f"{name} is a user who may do nothing yet; `optimus user set {name}` gives rights")


@user_app.command("set", cls=Command)
def set_user(
    name: Name,
    member: Member = None,
    viewer: Viewer = None,
    role: Roles = None,
    no_rights: Annotated[bool, typer.Option("--no-rights", help="Take all rights away.")] = False,
    service: Annotated[
        bool | None, typer.Option("--service/--person", help="What the user is; stays where neither is given.")
    ] = None,
    max_waiting: MaxWaiting = None,
    max_workers: MaxWorkers = None,
    workers_together: WorkersTogether = None,
    max_priority: MaxPriority = None,
    max_requests: MaxRequests = None,
    default_limits: Annotated[
        bool, typer.Option("--default-limits", help="Take the user's own limits away: those of every member hold.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Replace all that a user may do by what is given; limits that are not given stay. It holds for the user's tokens
    at once."""
    are_given = bool(member or viewer or role)
    own = limits.given(max_waiting, max_workers, workers_together, max_priority, max_requests)
    if no_rights and are_given:
        raise BadInput("--no-rights takes all rights away: give it without --member, --viewer and --role.")
    if not (no_rights or are_given or service is not None or own or default_limits):
        raise BadInput(
            f"Say all that {name} may do from now on: --member PROJECT, --viewer PROJECT, --role ROLE; "
            "or take all of it away: --no-rights; or what it may take at most: --max-waiting N and others."
        )
    with connect(url) as client:
        before = client.user(name)
        kind = before["kind"] if service is None else "service" if service else "person"
        rights = _rights(kind, member, viewer, role)
        if not (no_rights or are_given):
            rights |= {"role": before["role"], "projects": before["projects"]}
        kept = {} if default_limits or rights["role"] else _limits_of(before)
        if kept | own:
            rights["limits"] = kept | own
        changed = client.change_user(name, rights)
    if as_json:
        output.print_json(changed)
    else:
        output.show(render_people.user_list([changed]))
        lost = render_people.lost(before, changed)
        if lost:
            output.say(f"Taken away from {name}: {lost}.")


def _limits_of(user: User) -> dict[str, float]:
    """Those that the user has of its own; none from a service that knows no limits."""
    return {name: value for name, value in user.get("limits", {}).items() if isinstance(value, int | float)}


@user_app.command("remove", cls=Command)
def remove_user(name: Name, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Remove a user with all tokens. Jobs stay, with the name of their owner; they are no later user's."""
    with connect(url) as client:
        if not yes:
            rights = render_people.rights(client.user(name)) or "no rights"
            ask(f"Remove the user {name} ({rights}) with all tokens? Jobs stay.", "removed")
        client.remove_user(name)
    output.print_text(f"{name} is no user any more")


def _rights(kind: str, member: list[str] | None, viewer: list[str] | None, role: str | None) -> dict[str, Any]:
    both = set(member or ()) & set(viewer or ())
    if both:
        raise BadInput(f"--member and --viewer of the same project {min(both)}: give one of them")
    projects = dict.fromkeys(viewer or (), "viewer") | dict.fromkeys(member or (), "member")
    return {"kind": kind, "role": role, "projects": projects}


# --- tokens ----------------------------------------------------------------------------------------------------------


@token_app.command("list", cls=Command)
def list_tokens(
    user: Annotated[str | None, typer.Option(help="Only this user's (for administrators).")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List your tokens, or as an administrator those of all, with when each was last used."""
    with connect(url) as client:
        tokens = client.tokens(user)
    output.print_json({"tokens": tokens}) if as_json else output.show(render_people.token_list(tokens))


@token_app.command("create", cls=Command)
def create_token(
    user: Annotated[str | None, typer.Option(help="Whose it is to be; default: yours.")] = None,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    scope: Annotated[
        Literal["read", "submit", "operate"],
        typer.Option(help="submit: also submit and change own jobs; operate: all that its user may."),
    ] = "submit",
    project: Annotated[
        list[str] | None, typer.Option(metavar="PROJECT", help="It is good for this one only; repeatable.")
    ] = None,
    days: Annotated[float | None, typer.Option(help="It expires after so many days; default: never.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it. It cannot be shown again: the service keeps its hash only."""
    if days is not None and days * DAY_SECONDS < 1.0:
        raise BadInput(f"--days {days:g}: must be greater than 0; without --days it never expires.")
    wanted = {
        "user": user,
        "name": name,
        "scope": scope,
        "projects": project or None,
        "expires_seconds": None if days is None else days * DAY_SECONDS,
    }
    with connect(url) as client:
        made = client.create_token(wanted)
    if as_json:
        output.print_json(made)
        return
    output.print_text(made["secret"])
    output.say(f"Token {made['token']['id']} of {made['token']['user']}. Store it: it is not shown again.")


@token_app.command("revoke", cls=Command)
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `optimus token list` shows it.")],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Revoke a token: from now on it is refused."""
    with connect(url) as client:
        if not yes:
            found = next((each for each in client.tokens(None) if each["id"] == token), None)
            whose = [] if found is None else [f"`{found['name']}`"] * bool(found["name"]) + [f"of {found['user']}"]
            ask(f"Revoke the token {' '.join([token, *whose])}? What uses it is refused from then on.", "revoked")
        client.revoke_token(token)
    output.print_text(f"{token} is revoked")


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
