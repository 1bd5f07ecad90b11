"""What a job is called that nobody gave a name: by the task or the script that it trains. Pure."""

from __future__ import annotations

import re

from optimus_contract.shell_text import UNKNOWN

MAX_NAME = 63
_SAY_NOTHING = frozenset({"task", "make_task", "get_task", "create_task", "training_task", "main", "make", "build"})
"""Names of functions by which one task cannot be told from another."""
OTHER_LANGUAGES = "sh|bash|zsh|ksh|pl|rb|js|mjs|cjs|php|lua|R|r|jl"
"""Endings of files that another interpreter than Python's reads, as a part of a regular expression."""
_FILE = re.compile(rf"(?:.*/)?([^/]+)\.(py|{OTHER_LANGUAGES})", re.DOTALL)
_CODE = re.compile(r"(\S+) -\S*(?: \w+)?")


def name_for(trains: str) -> str:
    """A job name from the last word of a task's import path, or from a script: `pkg.train:BigNet` gives `bignet`,
    `scripts/train.py` gives `train`. A word that says nothing gives way to the module: `pkg.bert:task` gives `bert`.
    Of code in a command it is what runs it: `python -c 3f9a01ab` gives `python`. A script that is called by a number
    keeps its ending: `2.py` gives `2-py`. Where there is no letter in it, `job`."""
    return told_name(trains) or "job"


def told_name(trains: str) -> str | None:
    """See `name_for`; None: it holds no letter, or what it is by is not known before it runs (`UNKNOWN`)."""
    file, code = _FILE.fullmatch(trains), _CODE.fullmatch(trains)
    words = [file[1]] if file else [code[1]] if code else re.split(r"[.:/]", trains)
    last = words[-2] if len(words) > 1 and words[-1].lower() in _SAY_NOTHING else words[-1]
    if UNKNOWN in last:
        return None
    name = _as_name(last)
    if file and name.replace("-", "").isdigit():
        name = _as_name(f"{name[: MAX_NAME - 1 - len(file[2])]}-{file[2]}")
    return name if re.search("[a-z]", name) else None


def _as_name(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", word.lower())[:MAX_NAME].strip("-")
