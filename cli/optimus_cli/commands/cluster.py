"""`optimus nodes`: the machines and what runs on them."""

from __future__ import annotations

from optimus_cli import output, render
from optimus_cli.client import DEFAULT_URL
from optimus_cli.options import AsJson, Url, connect


def nodes(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the cluster's nodes: what they have and what is in use."""
    with connect(url) as client:
        found = client.nodes()
        readable = client.whoami()["projects"]
    if as_json:
        output.print_json({"nodes": found})
    else:
        output.show(render.node_list(found))
        if readable is not None:
            mine = ", ".join(sorted(readable)) or "none"
            output.say(f"Used, and tasks: by jobs that you may see (projects: {mine}).")
