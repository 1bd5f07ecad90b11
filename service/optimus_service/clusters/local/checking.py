"""Asks the tasks' own interpreter whether it can load a training task, so that a bad submission fails at once."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence

from optimus_service.clusters.local.environment import inherited
from optimus_service.clusters.local.task_users import Account

CHECK_SECONDS = 30.0
"""Importing a user's module may load big libraries; a submission must not hang for longer than this."""


def check_task(
    command: Sequence[str], import_path: str, working_directory: str | None, account: Account | None = None
) -> str | None:
    """Why `module:name` cannot be loaded; None when it can, or when nobody can tell in time.

    `account`: whom tasks run as; None: the user of this process.
    """
    if working_directory is not None and not os.path.isdir(working_directory):  # noqa: PTH112 - may be any string
        return f"the working directory {working_directory} does not exist on this machine"
    directory = ["--directory", working_directory] if working_directory is not None else []
    whole, environment = [*command, import_path, *directory], inherited(os.environ)
    if account is not None:
        whole, environment = account.command("/", whole), environment | account.environment("/")
    try:
        done = subprocess.run(
            whole,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=CHECK_SECONDS,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # the job itself will tell
    return _answer(done.stdout)


def _answer(printed: str) -> str | None:
    """What stands in the last line, a JSON object `{"ok": bool, "problem": str | null, "line": int | null}`."""
    lines = printed.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(answer, dict) or answer.get("ok", True):
        return None
    line = f" (line {answer['line']})" if answer.get("line") else ""
    return str(answer.get("problem") or "it cannot be loaded") + line
