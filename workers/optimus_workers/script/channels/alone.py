"""Counts and epochs that lines name with nothing beside them. A loop prints them again and again in the same words; in
words that come once, they are of something to come: `EMA starts at step 2000`, `milestones: epoch 30`."""

from __future__ import annotations

import re
from typing import NamedTuple

from optimus_workers.script.channels.said import Said, whole

MOST = 8
"""Lines of different words that are kept: a loop prints a few, in turn."""
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


class Line(NamedTuple):
    """A line that names a count with nothing beside it."""

    number: int
    """The count."""
    epoch: int | None
    """That was named last before it."""
    said: Said
    at: float
    """POSIX seconds."""


class Alone:
    """The lines of one output that name a count with nothing beside it."""

    def __init__(self) -> None:
        self._lines: dict[str, Line | None] = {}
        """Words → the line that has them; None: several have."""

    def take(self, text: str, line: Line) -> list[Line] | None:
        """The first line of the same words, if this is the second and both are of one epoch. None: these words have
        come with no other count."""
        words = _words(text, line.number)
        is_new, before = words not in self._lines, self._lines.pop(words, None)
        is_once = is_new or (before is not None and before[:2] == line[:2])
        self._lines[words] = line if is_once else None  # at the end: the oldest goes first
        if len(self._lines) > MOST:
            del self._lines[next(iter(self._lines))]
        if is_once:
            return None
        return [before] if before is not None and before.epoch == line.epoch else []


def _words(text: str, number: int) -> str:
    """What stands before the count, whatever other numbers are in it."""
    found = next((each for each in _NUMBER.finditer(text) if "." not in each[0] and whole(each[0]) == number), None)
    return _NUMBER.sub("#", text if found is None else text[: found.start()])
