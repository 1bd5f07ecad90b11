"""The folders that a script writes into: which its command names, and whether a checkpoint is being made in them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

NEWEST_FOLDERS = 16
MAX_ENTRIES = 4096
"""Of a folder that are looked at."""
HALF_SECONDS = 3.0
"""So long after something was added to it, a checkpoint that lacks what the one before has is taken to be completed."""
WHOLE = 0.9
"""A checkpoint is whole with this part of the bytes of the one before."""
_DIGITS = re.compile(r"\d+")

LOG_OPTIONS = frozenset({"logdir", "log_dir", "logging_dir"})
OUTPUT_OPTIONS = LOG_OPTIONS | {"output_dir", "directory"}


def named_folders(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command that name a folder for what it writes: name, and folder."""
    words = list(command)
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if option.startswith("--") and name in OUTPUT_OPTIONS:
            named = value if equals else "".join(words[index + 1 : index + 2])
            if named.strip("/"):
                yield name, named


class Folders:
    """Looks at folders in each of which checkpoints are, as folders that are named alike but for numbers."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = tuple(folders)
        self._changed_at = {folder: _changed_at(folder) for folder in self._folders}

    def look(self) -> bool:
        """Whether entries came or went since the last look, in a folder that was made meanwhile, too. Bytes that are
        added to a file are no change."""
        changed = [folder for folder, before in self._changed_at.items() if _changed_at(folder) != before]
        for folder in changed:
            self._changed_at[folder] = _changed_at(folder)
            if folder in self._folders:
                for made in _newest(folder)[:1]:
                    self._changed_at.setdefault(made.path, _changed_at(made.path))
        return bool(changed)

    def has_half(self) -> bool:
        """Whether something was just added to a checkpoint that lacks files or bytes which the one before it has."""
        return any(_is_half(folder) for folder in self._folders)


class _Checkpoint(NamedTuple):
    changed_at: int
    """In ns."""
    path: str
    kind: str
    """Its name without numbers."""


def _newest(folder: str) -> list[_Checkpoint]:
    """The folders in a folder, the one that was changed last first."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    found.append(_Checkpoint(entry.stat().st_mtime_ns, entry.path, _DIGITS.sub("#", entry.name)))
    return sorted(found, reverse=True)


def _is_half(folder: str) -> bool:
    checkpoints = _newest(folder)
    if not checkpoints or time.time() - checkpoints[0].changed_at / 1e9 >= HALF_SECONDS:
        return False
    newest = checkpoints[0]
    before = next((each for each in checkpoints[1:] if each.kind == newest.kind), None)
    if before is None:
        return False
    (names, n_bytes), (all_names, all_bytes) = _content(newest.path), _content(before.path)
    return not all_names <= names or n_bytes < WHOLE * all_bytes


def _content(folder: str) -> tuple[set[str], int]:
    """Names of the files in a folder without numbers, and their bytes together."""
    names, n_bytes = set(), 0
    files = (os.path.join(at, name) for at, _, inside in os.walk(folder) for name in inside)  # noqa: PTH118
    for path in islice(files, MAX_ENTRIES):
        with suppress(OSError):
            n_bytes += os.stat(path).st_size  # noqa: PTH116 - looked at often, see checkpoints.py
            names.add(_DIGITS.sub("#", os.path.relpath(path, folder)))
    return names, n_bytes


def _changed_at(folder: str) -> int | None:
    """In ns; None: it is not there."""
    with suppress(OSError):
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    return None
