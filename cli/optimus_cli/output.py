"""Where output goes: results to stdout, everything else to stderr, so that `--json` leaves pure JSON on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console, RenderableType


def console() -> Console:
    """stdout as it is now. Made anew each time: tests and pipes replace it."""
    return Console(file=sys.stdout)


def error_console() -> Console:
    return Console(file=sys.stderr)


def show(renderable: RenderableType) -> None:
    console().print(renderable)


def say(text: str) -> None:
    """A remark that is not the result: to stderr."""
    error_console().print(text, markup=False, highlight=False, soft_wrap=True)


def say_json(value: Any) -> None:
    """An error for programs: one line of JSON, to stderr."""
    sys.stderr.write(json.dumps(value, allow_nan=False) + "\n")


def print_text(text: str) -> None:
    """A plain line of the result, never wrapped or coloured."""
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One indented JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_json_line(value: Any) -> None:
    """One document of a stream of JSON lines; flushed, because somebody may be reading along."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
