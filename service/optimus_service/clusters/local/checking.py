"""Asks the tasks' own interpreter whether it can load a training task, so that a bad submission fails at once."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from optimus_contract.command import REPLACED, program_meant, script_file_of
from optimus_contract.limits import MAX_COUNT
from optimus_scheduler.model import Role, TaskKey
from optimus_service.clusters.base import TaskObjection, TaskSizes
from optimus_service.clusters.local.environment import inherited, task_environment
from optimus_service.clusters.local.task_users import Account

CHECK_SECONDS = 30.0
"""Importing a user's module may load big libraries; a submission must not hang for longer than this."""
ANSWER_BYTES = 64 * 1024
"""A verdict has some hundred bytes; the user's code may write to the same pipe without end."""
_TRIAL = "trial"
"""The id of a job that is none yet."""
DIE_SECONDS = 2.0
"""A process that was killed is gone at once, unless it hangs in the kernel."""


def check_task(
    command: Sequence[str], import_path: str, working_directory: str | None, account: Account | None = None
) -> str | None:
    """Why `module:name` cannot be loaded; None when it can, or when that is not known in time.

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
        return None  # the job itself will report it
    return _answer(done.stdout)


def try_task(
    command: Sequence[str], job: Mapping[str, Any], account: Account | None = None
) -> TaskObjection | TaskSizes | None:
    """What stands in the way of the job, else what it is like, by calling its task in a process that is thrown away.

    None when that is not known in time. The process and its process group are ended. It sees what
    the job's first worker would see, with an empty directory in place of the job's.
    `account`: whom tasks run as, and so this one; None: the user of this process.
    """
    printed = _run(command, job, account)
    return None if printed is None else _objection(printed) or _sizes(printed)


def remove_checkpoints(
    command: Sequence[str], job: Mapping[str, Any], job_id: str, account: Account | None = None
) -> str | None:
    """Why what the job keeps at its `checkpoint_url` was not removed; None when it was. As `try_task`, in a process
    that is thrown away: the store's file system and its credentials are those of the tasks."""
    printed = _run([*command, job["checkpoint_url"], job_id], job, account)
    if printed is None:
        return f"it took longer than {CHECK_SECONDS:g} s; asked again, what is left is removed"
    objection = _objection(printed)
    if objection is not None:
        return objection.message
    is_answered = any(line.startswith('{"ok": true') for line in printed.splitlines())
    return None if is_answered else "the tasks' Python could not do it: see that it has the workers' packages"


def _run(command: Sequence[str], job: Mapping[str, Any], account: Account | None) -> str | None:
    """What the command printed that is asked about a job; None when that is not known in time."""
    with tempfile.TemporaryDirectory(prefix="optimus-trial-", ignore_cleanup_errors=True) as own:
        if account is not None:
            os.chown(own, account.uid, account.gid)
        return _printed_by(command, job, account, own)


def _printed_by(command: Sequence[str], job: Mapping[str, Any], account: Account | None, own: str) -> str | None:
    directory = job.get("working_directory") or own
    environment = task_environment(os.environ, _as_first_worker(job, own), None)
    whole = list(command)
    if account is not None:
        whole, environment = account.command(directory, whole), environment | account.environment(own)
    with tempfile.TemporaryFile() as question:
        question.write(json.dumps(job).encode())
        question.seek(0)
        try:
            process = subprocess.Popen(
                whole,
                stdin=question,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=directory if account is None else "/",
                env=environment,
                start_new_session=True,
            )
        except OSError:
            return None  # the job itself will report it
    assert process.stdout is not None
    with process.stdout:
        try:
            return _printed(process.stdout.fileno(), time.monotonic() + CHECK_SECONDS)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(DIE_SECONDS)


def check_command(job: Mapping[str, Any], service: Mapping[str, str]) -> TaskObjection | None:
    """Why the command of a script could not be started on this machine. `service`: the service's environment."""
    directory, python = job.get("working_directory"), job.get("python")
    if directory is not None and not os.path.isdir(directory):  # noqa: PTH112 - may be any string
        return TaskObjection("working_directory", f"the directory {directory} does not exist on this machine")
    if python is not None and not os.access(python, os.X_OK):
        return TaskObjection("python", f"{python} is no program that can be run on this machine")
    command = list(job["command"])
    path = {**inherited(service), **(job.get("environment") or {})}.get("PATH", os.defpath)
    if python is not None:
        path = f"{os.path.dirname(python)}:{path}"  # noqa: PTH120 - may be any string
    program = command[0]
    found = shutil.which(os.path.join(directory or "/", program) if "/" in program else program, path=path)  # noqa: PTH118
    known = program in REPLACED
    if found is None and not known:
        own = (job.get("environment") or {}).get("PATH")
        of = "the PATH that tasks have on their node" if own is None else f"the job's PATH, {own}"
        where = f"its directory {directory or '/'}" if "/" in program else of
        is_script = program.endswith(".py") and os.path.isfile(os.path.join(directory or "/", program))  # noqa: PTH113, PTH118
        near = program_meant(program, lambda other: other in REPLACED or shutil.which(other, path=path))
        meant = f"python {program}" if is_script else near
        hint = "" if meant is None else f"; did you mean `{meant}`?"
        return TaskObjection("command", f"{program}: command not found in {where}{hint}")
    script = script_file_of(command)
    if script is not None and directory is not None and not _is_file(script, directory, path):
        return TaskObjection("command", f"{script} is no file in {directory}")
    return None


def _is_file(script: str, directory: str, path: str) -> bool:
    """Whether it is there. `bash` looks for a script that is not in its directory as for a program."""
    places = [directory, *(() if "/" in script or script.endswith(".py") else path.split(os.pathsep))]
    return any(os.path.isfile(os.path.join(place, script)) for place in places)  # noqa: PTH113, PTH118 - any strings


def _as_first_worker(job: Mapping[str, Any], own: str) -> dict[str, str]:
    """The variables by which a task knows itself: code that reads them when it is imported must be able to."""
    ours = {
        "OMP_NUM_THREADS": "1",
        "OPTIMUS_JOB_ID": _TRIAL,
        "OPTIMUS_TASK_NAME": TaskKey(_TRIAL, Role.WORKER, 0).name,
        "OPTIMUS_TASK_RANK": "0",
        "OPTIMUS_JOB_DIRECTORY": own,
        "OPTIMUS_JOB_SPEC": json.dumps(job),
        "OPTIMUS_ATTEMPT": "0",
    }
    return {**job.get("environment", {}), **ours}


def _printed(pipe: int, deadline: float) -> str | None:
    """All that comes out of the pipe; None when it is too much or has no end in time."""
    found = b""
    while len(found) <= ANSWER_BYTES:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        piece = os.read(pipe, ANSWER_BYTES)
        if not piece:
            return found.decode(errors="replace")
        found += piece
    return None


def _objection(printed: str) -> TaskObjection | None:
    """What stands in the last line, a JSON object `{"ok": bool, "problem": str | null, "field": str | null}`."""
    answer = _last_object(printed)
    if answer.get("ok", True):
        return None
    return TaskObjection(str(answer.get("field") or "task"), str(answer.get("problem") or "it cannot be trained"))


def _sizes(printed: str) -> TaskSizes | None:
    """What else stands there, `{"n_examples": int | null, "global_batch_size": int | null}`."""
    answer = _last_object(printed)
    found = [answer.get("n_examples"), answer.get("global_batch_size")]
    n_examples, batch = (each if isinstance(each, int) and 0 < each <= MAX_COUNT else None for each in found)
    return None if n_examples is None or batch is None else TaskSizes(n_examples, batch)


def _answer(printed: str) -> str | None:
    """What stands in the last line, a JSON object `{"ok": bool, "problem": str | null, "line": int | null}`."""
    answer = _last_object(printed)
    if answer.get("ok", True):
        return None
    line = f" (line {answer['line']})" if answer.get("line") else ""
    return str(answer.get("problem") or "it cannot be loaded") + line


def _last_object(printed: str) -> Mapping[str, Any]:
    """The JSON object in the last line; empty where there is none."""
    lines = printed.strip().splitlines()
    with suppress(ValueError):
        answer = json.loads(lines[-1]) if lines else None
        if isinstance(answer, dict):
            return answer
    return {}
