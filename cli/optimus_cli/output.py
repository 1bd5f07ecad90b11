"""Where output goes: results to stdout, everything else to stderr, so that `--json` leaves pure JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sized
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROLS = [*(code for code in range(32) if chr(code) not in "\t\n"), *range(127, 160)]
_UNSAFE = dict.fromkeys([*_CONTROLS, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
"""What moves a cursor, changes a title or turns the direction of writing: whoever named a job is not to do that."""


class SafeConsole(Console):
    """A console that writes no control character of what it shows; its own colours stay.

    Text is text: `my_task:wave` is no emoji, and `[red]` no colour.
    """

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file=file, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of anything that can be shown."""
        for segment in super().render(renderable, options):
            safe = segment.text if segment.control else segment.text.translate(_UNSAFE)
            yield segment if safe == segment.text else Segment(safe, segment.style)


def console() -> Console:
    """stdout as it is now. Made anew each time: tests and pipes replace it."""
    return SafeConsole(file=sys.stdout)


def error_console() -> Console:
    return SafeConsole(file=sys.stderr)


def show(renderable: RenderableType) -> None:
    console().print(renderable)


def say(text: str) -> None:
    """A remark that is not the result: to stderr."""
    error_console().print(text, highlight=False, soft_wrap=True)


def enough(most: int | None) -> int | None:
    """How many items to ask for where at most so many are printed (None: all): one more, which says that there are
    more."""
    return most if most is None else most + 1


def is_cut(found: Sized, most: int | None) -> bool:
    """Whether more was found than is printed."""
    return most is not None and len(found) > most


def say_what_is_left(found: Sized, most: int | None, which: str, thing: str, how: str, *, beside: str = "") -> None:
    """That a list ends before its end, and which flags show more: to stderr. Nothing where all of it was printed.
    `beside`: what else is to be known of the rest."""
    if most is None or not is_cut(found, most):
        return
    several = {"entry": "entries"}.get(thing, f"{thing}s")
    what = f"Only {which} {thing} is" if most == 1 else f"Only {which} {most:,} {several} are"
    say(f"{what} shown{beside}; {how} shows more.")


def say_json(value: Any) -> None:
    """An error for programs: one line of JSON, to stderr."""
    sys.stderr.write(json.dumps(value, allow_nan=False) + "\n")


def print_text(text: str) -> None:
    """A plain line of the result, never wrapped or coloured."""
    console().print(text, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One indented JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_json_line(value: Any) -> None:
    """One document of a stream of JSON lines; flushed, because somebody may be reading along."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
