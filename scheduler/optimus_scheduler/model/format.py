"""Sizes, times and errors as people say them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from optimus_scheduler.model import Allocation

_TRACEBACK: Final = "Traceback (most recent call last):"
_STACKS: Final = "(most recent call first):"
"""What `faulthandler` writes of a process that hangs: the stack of each thread, the innermost frame first."""
_LIBRARY: Final = re.compile(
    r'File "(?:<|[^"]*/(?:(?:site|dist)-packages|lib/python3[^/]*|optimus_(?:workers|client|contract))/)'
)
_LOGGED: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: ")
"""What a task's log has before the words of its own modules."""
ITS_OWNER: Final = "its owner"
"""Who paused or resumed a job, where nothing else is known."""
QUOTAS: Final = "quotas"
"""Who paused a job that quotas leave no room."""
IS_BEING_STOPPED: Final = "Cancelled: its tasks are being stopped."
"""Of a job that its owner cancelled, until it has ended."""
HEADLINE_LENGTH: Final = 240
"""Characters of a headline at most: two or three lines of a list."""


def headline(error: str) -> str:
    """An error in one line: the last line of `error`, which names the exception where `error` is a traceback. Of the
    stacks of a process that hangs the innermost frame of its owner's code.

    What the error begins with ("worker 0 failed:") is kept, but not what was printed between that and the end. At most
    `HEADLINE_LENGTH` characters, without the time and the module of a line of a log.
    """
    before, traceback, rest = error.partition(_TRACEBACK)
    lines = [line.strip() for line in (rest if traceback else error).splitlines() if line.strip()]
    if not lines:
        return " ".join(error.split())[:HEADLINE_LENGTH]
    where = next((" ".join(line.split()) for line in before.splitlines() if line.strip()), "")
    is_kept = bool(traceback) or (len(lines) > 1 and where.endswith(":"))
    newest = _own_frame(lines) or _LOGGED.sub("", lines[-1], count=1)
    words = f"{where} {newest}".strip() if is_kept else newest
    return words if len(words) <= HEADLINE_LENGTH else f"{words[: HEADLINE_LENGTH - 1]}…"


def _own_frame(lines: Sequence[str]) -> str | None:
    """The first frame that is of no library, with its file's name; None where there is none, or no stack."""
    if not any(line.endswith(_STACKS) for line in lines):
        return None
    frame = next((line for line in lines if line.startswith("File ") and not _LIBRARY.match(line)), None)
    return None if frame is None else re.sub(r'"[^"]*/', '"', frame)


@lru_cache(maxsize=2**12)
@lru_cache(maxsize=4096)  # the same few sizes are spoken of again and again
def size_words(size: Allocation) -> str:
    """3 workers and 1 server; only workers for a size without servers."""
    servers = f" and {size.servers} server{'s' * (size.servers != 1)}" if size.servers or not size.workers else ""
    return f"{size.workers} worker{'s' * (size.workers != 1)}{servers}"


_LAST_INSTANT = 253_402_300_799.0
"""The end of the year 9999, POSIX seconds: the last one that has a date."""


def instant_words(at: float) -> str:
    """2026-11-25 18:30:05 UTC, of POSIX seconds. Sentences that are kept name instants: "in 7 min" is false later. The
    last one that has a date for any later one, and 1970 for any before."""
    return f"{datetime.fromtimestamp(min(max(at, 0.0), _LAST_INSTANT), UTC):%Y-%m-%d %H:%M:%S} UTC"


def time_words(seconds: float) -> str:
    """0.4 s, 12 s, 5 min, 2.5 h, 3 days; 0.0 s for a time that is over. Of what is predicted or set; see `lasted`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def lasted(seconds: float) -> str:
    """Of a time that is over, or how long ago something was: 42 s, 2 min 29 s, 2 h 10 min, 4 d 3 h. Rounded to whole
    seconds, of which a larger unit is cut off, as the command line and the page write ages: what is told of one moment
    in two places, some seconds apart, differs by no more than these seconds."""
    whole = max(0, math.floor(seconds + 0.5))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def retry_words(seconds: float, number: int, most: int, error: str) -> str:
    """What a job is told that waits for so long before retry `number` of `most`, or of more, where its owner has set
    fewer since: that retry is not taken back."""
    return f"Waits {time_words(seconds)} after an error (retry {number} of {max(number, most)}): {error}"


def money_words(amount: float) -> str:
    """12.34, 0.0034: in whatever currency prices are. Small amounts keep two digits that tell them from nothing."""
    return f"{amount:.2f}" if amount <= 0.0 or amount >= 0.1 else f"{amount:.2g}"
