"""Removes the checkpoints of a job that has ended from where `checkpoint_url` says they are.

    python -m optimus_workers.checkpoint.remove URL JOB

runs where tasks run, with the job's variables, and prints, as its last line, one JSON object
`{"ok": bool, "problem": str | null, "removed": int}`. The exit code is 1 where something may be left.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimus_workers.checkpoint.storage import Storage, open_storage


def remove_all(storage: Storage) -> int:
    """Remove every file; how many there were. Manifests first: what is removed in part is then no checkpoint any more.

    Raises:
        OSError: the storage did not do it; what is left is removed by the next call.
    """
    names = sorted(storage.names(), key=lambda name: (not name.startswith("manifest-"), name))
    for name in names:
        storage.remove(name)
    return len(names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answer."""
    parser = argparse.ArgumentParser(prog="optimus_workers.checkpoint.remove", description=__doc__.splitlines()[0])
    parser.add_argument("url", metavar="URL", help="`checkpoint_url` of the job")
    parser.add_argument("job", metavar="JOB", help="its id")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            answer: dict[str, Any] = {
                "ok": True,
                "problem": None,
                "removed": remove_all(_storage(options, Path(scratch))),
            }
        except OSError as error:
            answer = {"ok": False, "problem": str(error), "removed": 0}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if answer["ok"] else 1


def _storage(options: argparse.Namespace, scratch: Path) -> Storage:
    return open_storage(options.url, options.job, scratch)


if __name__ == "__main__":
    sys.exit(main())
