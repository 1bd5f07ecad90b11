"""Regular expressions of the user's own, searched for in printed lines by a process of their own.

One that goes back and forth over a line, as `(a+)+$` does, may take years for it. In the process of the agent it would
hold the interpreter's lock for so long, and with it all that the agent does: nothing would be reported, and the script
would stand still with its output full. The standard library stops such a search by a signal to a main thread alone. So
this file is also a program, which has nothing else to do than to search, and stops itself.

It needs the standard library only: the agent runs in images that have nothing else.
"""

from __future__ import annotations

import json
import math
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

Found = Sequence[Mapping[str, str | None]]
"""The named groups of each pattern that was found."""
Search = Callable[[str], Found]

SEARCH_SECONDS = 0.1
"""Of the processor, for one pattern in one line: tens of thousands of times what usual ones take in usual lines. But
`.*?loss (\\S+)` takes longer than that in a line of 8 KiB without a loss."""
SHORT = 300
"""Characters of a line, more than lines of progress have. One that is longer and took too long is data, most likely,
and no fault of the pattern, which from then on is searched for in lines of half that length at most ..."""
MOST_TOO_LONG = 3
"""... and after so many short lines that took too long, in none."""
ANSWER_SECONDS = 10.0
"""Until the process answers, on a machine that has other things to do; then it is taken for lost, and started anew."""
LONGEST_PAUSE_SECONDS = 60.0
"""Between two starts of a process that is lost again and again before it answers, as where memory is short."""


def given_up_words(pattern: str) -> str:
    """What the owner of a script should know of a pattern that is not searched for any more."""
    return (
        f"--progress-pattern '{pattern[:200]}' is not looked for any more: in {MOST_TOO_LONG} lines it took longer "
        f"than {SEARCH_SECONDS:g} s. What it would find is not known from now on. A repetition within a "
        "repetition, as in (a+)+, or several .* make it try each way to divide a line: write what stands between the "
        "figures, such as 'step (?P<step>\\d+) loss (?P<loss>\\S+)', or report with optimus_client (docs/scripts.md)."
    )


def plain_search(patterns: Sequence[str]) -> Search:
    """In this process, without a limit of time."""
    compiled = [re.compile(pattern) for pattern in patterns]
    return lambda line: [match.groupdict() for match in (each.search(line) for each in compiled) if match is not None]


class LimitedSearch:
    """Finds patterns in lines, each within a limited time. Never raises for any line; not for several threads at once.

    Its process is started with the first line, and anew when it is lost: later and later while it does not answer.
    """

    def __init__(self, patterns: Sequence[str], monotonic: Callable[[], float] = time.monotonic) -> None:
        self.given_up: list[str] = []
        """The patterns that are not searched for any more: they took too long."""
        self._left = list(patterns)
        self._monotonic = monotonic
        self._n_lost = 0
        """Processes in a row that were lost before they answered ..."""
        self._again_at = -math.inf
        """... and when another one is started."""
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, line: str) -> Found:
        if not self._left or self._monotonic() < self._again_at:
            return []
        try:
            answer = self._ask(line)
        except (OSError, ValueError):  # it cannot be started, was killed, or does not answer
            pause = min(float(self._n_lost), LONGEST_PAUSE_SECONDS)
            self._n_lost, self._again_at = self._n_lost + 1, self._monotonic() + pause
            self.close()
            return []
        self._n_lost = 0
        self.given_up += answer["given_up"]
        self._left = [pattern for pattern in self._left if pattern not in self.given_up]
        found: Found = answer["found"]
        return found

    def close(self) -> None:
        """End the process; another line would start another one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(OSError):
            process.communicate()

    def _ask(self, line: str) -> dict[str, Any]:
        process = self._process or self._start()
        request, answers = process.stdin, process.stdout
        assert request is not None
        assert answers is not None
        request.write(json.dumps(line).encode() + b"\n")
        request.flush()
        if not select.select([answers], [], [], ANSWER_SECONDS)[0]:
            raise TimeoutError("the search does not answer")
        answer: dict[str, Any] = json.loads(answers.readline())
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, json.dumps(self._left)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the command
        )
        return process


# --- the process ------------------------------------------------------------------------------------------------------


class _TookTooLong(Exception):
    """A search has had its time."""


class _Limited:
    """Searches for patterns, each of which may take `SEARCH_SECONDS`. In the main thread of a process alone."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = {pattern: re.compile(pattern) for pattern in patterns}
        self._n_too_long = dict.fromkeys(patterns, 0)
        self._longest = dict.fromkeys(patterns, sys.maxsize)
        self._searches = False
        signal.signal(signal.SIGVTALRM, self._stop)

    def answer(self, line: str) -> dict[str, Any]:
        """What is found in a line, and the patterns that are given up with it."""
        found, given_up = [], []
        for pattern, compiled in self._patterns.items():
            if len(line) > self._longest[pattern]:
                continue
            try:
                match = self._search(compiled, line)
            except _TookTooLong:
                self._longest[pattern] = max(SHORT, len(line) // 2)
                self._n_too_long[pattern] += len(line) <= SHORT
                if self._n_too_long[pattern] >= MOST_TOO_LONG:
                    given_up.append(pattern)
                continue
            if match is not None:
                found.append(match.groupdict())
        for pattern in given_up:
            del self._patterns[pattern]
        return {"found": found, "given_up": given_up}

    def _search(self, pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
        self._searches = True
        signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_SECONDS)
        try:
            return pattern.search(line)
        finally:
            self._searches = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _stop(self, _number: int, _frame: object) -> None:
        if self._searches:
            raise _TookTooLong


def main() -> None:
    """Answer each line of the input, until it ends."""
    limited = _Limited(json.loads(sys.argv[1]))
    for request in sys.stdin.buffer:
        sys.stdout.write(json.dumps(limited.answer(json.loads(request))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        main()
