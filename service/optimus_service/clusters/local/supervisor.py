"""Starts one task under a small shell script that outlives the service and records how the task ended."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

SHELL = "/bin/sh"

_COMMENTED_SCRIPT = """\
umask 077
# A stop goes to the whole process group. The shell has to stay and see how the task ends; a trap that does something
# is not inherited by the task, and runs only after the task in the foreground has ended. It is set before anybody can
# know of this process: a stop that came earlier would end the shell with nothing recorded.
optimus_stopped=
trap 'optimus_stopped=yes' TERM INT HUP
read -r optimus_stat < "/proc/$$/stat" && printf '%s\\n' "$optimus_stat" > "$1/process.$$" || exit 1
# A hard link can be made once. Whoever comes second (a start that was repeated after a crash of the service) leaves.
ln "$1/process.$$" "$1/process" 2>/dev/null
optimus_code=$?
rm -f "$1/process.$$"
[ "$optimus_code" = 0 ] || exit 0
if [ -n "$optimus_stopped" ]; then optimus_code=143
elif cd "$2"; then eval "$3"; optimus_code=$?
else optimus_code=3
fi
printf '%s\\n' "$optimus_code" > "$1/exit_code.$$" && mv "$1/exit_code.$$" "$1/exit_code"
# What the task left running in its process group ends with it, and so does this shell.
kill -KILL 0
"""
"""Exit code 3 means that the user has to mend something (docs/protocol.md): here, a working directory that is not
there. The shell gives 127 for a command that does not exist and 128 + n for a death by signal n."""
_SCRIPT = "\n".join(line for line in _COMMENTED_SCRIPT.splitlines() if not line.startswith("#"))
"""What is run, and what `ps` shows: without the comments."""


def spawn(
    record: Path, log: Path, directory: str, command: Sequence[str], environment: Mapping[str, str]
) -> int:  # the process id of the supervisor
    """Run `command` in `directory`, detached from the service: in a session of its own, printing to `log`.

    The caller has to collect the supervisor with `waitpid`, unless it ends before the supervisor does.
    """
    descriptors = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        SHELL,
        [SHELL, "-c", _SCRIPT, "optimus-task", str(record), directory, shlex.join(command)],
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), descriptors, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        # Python ignores SIGPIPE, and what is ignored stays ignored in children.
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
    )
