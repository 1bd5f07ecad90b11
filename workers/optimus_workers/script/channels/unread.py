"""Lines in which no step was recognised, and the pattern that would read one with figures. Pure."""

from __future__ import annotations

import re

MAX_CHARACTERS = 300
"""Of a line that is shown."""
_FIGURE = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_TIME = re.compile(r"\d+:\d\d(?::\d\d)?(?:[.,]\d+)?|\d{4}-\d\d-\d\d")


NOTHING_PRINTED = "(nothing so far)"


def unread_line(newest: str | None, plain: str | None, n_lines: int) -> str | None:
    """What is shown of a script of which no step is known: its newest line with figures, else its newest one without
    (`plain`), or that it is silent. None: all of its `n_lines` lines are empty, or of errors."""
    return newest or plain or (None if n_lines else NOTHING_PRINTED)


def says_more(line: str, than: str | None) -> bool:
    """Whether a line to be shown tells more than the one that was: lines with figures more than those without, any
    more than silence."""
    return _told_by(line) > _told_by(than)


def _told_by(line: str | None) -> int:
    if line in (None, NOTHING_PRINTED):
        return 0 if line is None else 1
    return 3 if has_figures(line) else 2


def has_figures(line: str) -> bool:
    """Whether it may tell a step and a loss: a whole number and another figure, beside words or with decimals."""
    found = _figures(line)
    n_whole = sum(each[0].isdigit() for each in found)
    return len(found) >= 2 and n_whole > 0 and (n_whole < len(found) or re.search(r"[A-Za-z]", line) is not None)


def suggested_pattern(line: str) -> str | None:
    """The `--progress-pattern` that takes the first whole number for the step and the first other figure behind it
    for the loss. None: the line has no such two."""
    figures = list(_FIGURE.finditer(_without_times(line)))
    step = next((each for each in figures if each[0].isdigit()), None)
    if step is None:
        return None
    loss = next((each for each in figures if each.start() > step.end() and not each[0].lstrip("+-").isdigit()), None)
    if loss is None:
        return None
    before = _words(line[: step.start()])[-20:]
    between = line[step.end() : loss.start()]
    words = _escaped(_words(between)[-20:])
    between = words if words == _escaped(between) else f".*?{words}"
    pattern = f"{_escaped(before)}(?P<step>\\d+){between}(?P<loss>[-+.\\deE]+)"
    found = re.search(pattern, line)
    return pattern if found is not None and (found["step"], found["loss"]) == (step[0], loss[0]) else None


def _figures(line: str) -> list[re.Match[str]]:
    return list(_FIGURE.finditer(_without_times(line)))


def _without_times(line: str) -> str:
    """Dates and times stand before many lines, and are no figures."""
    return _TIME.sub(lambda match: "x" * len(match[0]), line)


def _words(text: str) -> str:
    """What stands behind the last figure, which differs from line to line."""
    return re.split(r"\d", text)[-1]


def _escaped(text: str) -> str:
    return re.sub(r"(?:\\ )+", r"\\s+", re.escape(text))
