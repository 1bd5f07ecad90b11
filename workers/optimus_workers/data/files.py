"""Finding the files of a data set, with an error that says what was looked for and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optimus_workers.errors import TaskError


def find(directory: str | Path, folders: Sequence[str], names: Sequence[str], what: str) -> list[Path]:
    """The files `names` in `directory`, or all of them in one of its `folders`; a name may also end in .gz there.

    Raises `TaskError` that names the files that are missing.
    """
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise TaskError(f"{what}: there is no directory {root}")
    places = [root, *(root / folder for folder in folders)]
    for place in places:
        found = [_existing(place / name) for name in names]
        if all(found):
            return [path for path in found if path is not None]
    missing = [name for name in names if not any(_existing(place / name) for place in places)] or list(names)
    looked = ", ".join(str(place) for place in places)
    raise TaskError(f"{what}: {', '.join(missing)} not found in {looked}")


def _existing(path: Path) -> Path | None:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None
