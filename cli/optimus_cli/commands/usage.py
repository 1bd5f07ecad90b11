"""`optimus usage`: who used how much of the cluster in a month."""

from __future__ import annotations

from typing import Annotated

import typer

from optimus_cli import output, render_usage
from optimus_cli.client import DEFAULT_URL
from optimus_cli.options import AsJson, Url, connect

Month = Annotated[str | None, typer.Option(metavar="YYYY-MM", help="In UTC; default: this month.")]


def usage(month: Month = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show what jobs of the projects that you may read were given in a month, and what it cost."""
    with connect(url) as client:
        found = client.usage(month)
    output.print_json(found) if as_json else output.show(render_usage.usage(found))
