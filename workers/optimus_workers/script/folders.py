"""The folders that a script writes into: which its command names, and whether entries come or go there. That shows a
checkpoint that has begun before much of it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

NEWEST_FOLDERS = 16
MAX_ENTRIES = 4096
"""Of a folder that are looked at."""

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
    """Looks at folders, and at those that are made in them meanwhile."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._changed_at = {folder: _changed_at(folder) for folder in folders}

    def changed(self) -> bool:
        """Whether entries came or went since the last look. Bytes that are added to a file are no change."""
        found = False
        for folder, before in list(self._changed_at.items()):
            now = _changed_at(folder)
            if now != before:
                found = True
                self._changed_at[folder] = now
                self._add_new(folder, before or 0)
        return found

    def newest(self) -> float:
        """When entries came or went last, in POSIX seconds of the file system's clock; 0: there is no folder."""
        return max((at or 0 for at in self._changed_at.values()), default=0) / 1e9

    def _add_new(self, folder: str, since: int) -> None:
        """Look at the folders that were made in this one, too."""
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in islice(entries, MAX_ENTRIES):
                if len(self._changed_at) >= 2 * NEWEST_FOLDERS:
                    return
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False) and entry.stat().st_mtime_ns >= since:
                        # From now on: what is in it already is a part of the change that showed it.
                        self._changed_at.setdefault(entry.path, _changed_at(entry.path))


def _changed_at(folder: str) -> int | None:
    """In ns; None: it is not there."""
    with suppress(OSError):
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - looked at often, see checkpoints.py
    return None
