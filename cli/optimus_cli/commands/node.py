"""`optimus nodes` lists them; `optimus node`: operators close nodes, empty them, and open them again."""

from __future__ import annotations

from typing import Annotated

import typer

from optimus_cli import output
from optimus_cli.client import DEFAULT_URL
from optimus_cli.commands.changes import lost_by_stops
from optimus_cli.options import AsJson, Command, Group, Url, Yes, ask, connect
from optimus_cli.show import render_tables

app = typer.Typer(cls=Group, no_args_is_help=True, help="Close nodes, empty them, open them again (for operators).")
Name = Annotated[str, typer.Argument(metavar="NODE", help="As `optimus nodes` shows it.")]


@app.command(cls=Command)
def cordon(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Let nothing new be placed on a node; what runs there stays."""
    _do(name, "cordon", "takes no new tasks", url, as_json=as_json)


@app.command(cls=Command)
def drain(
    name: Name,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let nothing be placed on a node and move its tasks elsewhere. `optimus nodes` shows when it is empty.

    No step is lost, but by scripts: those are stopped and go on from their checkpoint. Asks first where one is not
    known to have any: it begins anew.
    """
    if not yes:
        with connect(url) as client:
            tasks = next((node["tasks"] for node in client.nodes() if node["name"] == name), [])
            lost = lost_by_stops(client, tasks)
        if lost:
            ask(f"Drain {name}? Not known to go on from a checkpoint: {lost}.", "drained")
    _do(name, "drain", "is being emptied", url, as_json=as_json)


@app.command(cls=Command)
def uncordon(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Open a node that was cordoned or drained by `optimus node`."""
    _do(name, "uncordon", "is open", url, as_json=as_json)


def _do(name: str, what: str, done: str, url: str, *, as_json: bool) -> None:
    with connect(url) as client:
        node = client.change_node(name, what)
    if as_json:
        output.print_json(node)
        return
    n = len(node["tasks"])
    tasks = "no tasks" if n == 0 else "1 task" if n == 1 else f"{n} tasks"
    closed = what == "uncordon" and not node["schedulable"]
    output.print_text(f"{name} {'is still closed by the cluster itself' if closed else done}; it has {tasks}")


def nodes(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the cluster's nodes: what they have and what is in use."""
    with connect(url) as client:
        found = client.nodes()
        readable = client.whoami()["projects"]
    if as_json:
        output.print_json({"nodes": found})
    else:
        output.show(render_tables.node_list(found))
        if readable is not None:
            mine = ", ".join(sorted(readable)) or "none"
            output.say(f"Used, and tasks: by jobs that you may see (projects: {mine}).")
