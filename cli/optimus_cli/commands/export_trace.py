"""`optimus export-trace`: what really happened, for `optimus simulate` to replay."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from optimus_cli import output
from optimus_cli.client import DEFAULT_URL
from optimus_cli.errors import BadInput, CliError
from optimus_cli.options import Url, connect
from optimus_cli.resolve import check_project

STDOUT = Path("-")
_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}

Since = Annotated[
    str | None, typer.Option(metavar="MOMENT", help="From when on: 30d, 12h, or a date such as 2026-11-01.")
]


def export_trace(
    file: Annotated[Path, typer.Argument(help="Where the trace goes (.jsonl); - is stdout.")],
    since: Since = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="Until when; default: now.")] = None,
    project: Annotated[str | None, typer.Option(help="Only jobs of this project.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Write the jobs that have ended as a trace: arrivals, requests, measured speeds and losses, ends.

    What would another policy have done? `optimus simulate --trace FILE --policy drf,optimus` tells.
    """
    now = datetime.now(UTC)
    given = {
        "since": since and moment(since, now).isoformat(),
        "until": until and moment(until, now).isoformat(),
        "project": project,
    }
    params = {name: value for name, value in given.items() if value is not None}
    with connect(url) as client:
        if project is not None:
            check_project(client, project)
        end = _write(client.trace(params), file)
    left_out = [f"{end[name]} {why}" for name, why in _LEFT_OUT.items() if end[name]]
    rest = f"; left out: {', '.join(left_out)}" if left_out else ""
    output.say(f"wrote {end['jobs']} jobs to {'stdout' if file == STDOUT else file}{rest}")


_LEFT_OUT = {"active": "not ended yet", "unmeasured": "of which nothing was measured"}


def moment(text: str, now: datetime) -> datetime:
    """`30d` ago, or a date with or without a time; UTC unless it says otherwise. Raises `BadInput`."""
    if text[-1:] in _UNITS and text[:-1].isdigit():
        return now - timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r}: expected something like 30d, 12h, 2026-11-01 or 2026-11-01T08:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _write(lines: Iterator[str], file: Path) -> dict[str, Any]:
    """Write the lines but the last, which says how many there were."""
    end: dict[str, Any] | None = None
    with _opened(file) as stream:
        for line in lines:
            found = json.loads(line)
            end = found.get("end")
            if end is None:
                stream.write(line + "\n")
    if end is None:
        raise CliError("The service stopped in the middle: the trace is not complete.")
    return end


@contextmanager
def _opened(file: Path) -> Iterator[IO[str]]:
    if file == STDOUT:
        yield sys.stdout
        return
    try:
        with file.open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}") from error
