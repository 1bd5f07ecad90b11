"""Would this job train? Its task is imported and called as a worker would, in a process that is thrown away.

    python -m optimus_workers.try_task < job.json

reads `{"task", "task_args", "working_directory", "global_batch_size", "checkpoint_url", "architecture"}` and prints, as
its last line, one JSON object `{"ok": bool, "problem": str | null, "field": str | null, "n_examples": int | null,
"global_batch_size": int | null}`; `field` is the field of the job that is at fault, the sizes are those of a good one.
Nothing is called that does not say that it makes a `TrainingTask`: `os:system` is one, too.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import re
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEMORY_SHARE = 0.25
"""Share of the machine's memory. A task that needs more is not judged: a trial must not take what others train with."""
LEAST_MEMORY_BYTES = 4 * 2**30
"""On a small machine: the interpreter, PyTorch and a small data set must fit, or no task could be judged."""
OOM_SCORE = 1000
"""The kernel ends this process before any other when the machine's memory runs out (`man 5 proc`)."""
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "bad_alloc", "failed to map segment", "start new thread")
"""What libraries say that raise no `MemoryError`."""
TASK_TYPE = "TrainingTask"
_STORE_SECONDS = 8.0
"""How long a store may take to answer a connection."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`problem` says what is wrong with the job, and `field` which of its fields is at fault."""

    ok: bool
    problem: str | None = None
    field: str | None = None
    n_examples: int | None = None
    global_batch_size: int | None = None


GOOD = Verdict(ok=True)


def judge(job: Mapping[str, Any]) -> Verdict:
    """Import the task, make sure that it is one, call it, and look at what comes back. Runs the user's code."""
    import_path, arguments = str(job["task"]), dict(job.get("task_args") or {})
    if job.get("working_directory"):
        sys.path.insert(0, job["working_directory"])
    module_name, _, name = import_path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        return _failed(f"cannot import {module_name}", error, "task")
    if found is None:
        return Verdict(ok=False, problem=f"{module_name} has no {name!r}", field="task")
    why_not = why_no_task(import_path, found)
    if why_not is not None:
        return Verdict(ok=False, problem=why_not, field="task")
    wrong = wrong_arguments(found, arguments)
    if wrong is not None:
        return Verdict(ok=False, problem=wrong, field="task_args")
    has_servers = job.get("architecture") == "ps"
    called = _called(import_path, found, arguments, job.get("global_batch_size"), has_servers=has_servers)
    url = job.get("checkpoint_url")
    away = why_no_store(str(url), Path(os.environ.get("OPTIMUS_JOB_DIRECTORY", "."))) if called.ok and url else None
    return called if away is None else Verdict(ok=False, problem=away, field="checkpoint_url")


def why_no_task(import_path: str, found: object) -> str | None:
    """Why this is nothing that makes a `TrainingTask`, found out without calling it; None when it says that it does.

    It says so by its return annotation; without one, by being written where `TrainingTask` is known.
    """
    wanted = f"{import_path} is not a training task: name a function that returns a TrainingTask"
    if not callable(found):
        return f"{wanted}, not {_kind(found)}"
    function = inspect.unwrap(getattr(found, "func", found))  # functools.partial has what it calls as `func`
    if inspect.isclass(function):
        is_one = any(each.__name__ == TASK_TYPE for each in function.__mro__)
        return None if is_one else f"{wanted}, not the class {function.__name__}"
    if not inspect.isroutine(function):
        function = type(function).__call__  # an object that can be called
    function = getattr(function, "__func__", function)  # a method's function
    if not inspect.isfunction(function):
        return f"{wanted}, not {_kind(found)}"
    said = function.__annotations__.get("return")
    if said is not None:
        text = said if isinstance(said, str) else getattr(said, "__name__", repr(said))
        return None if TASK_TYPE in text or text in ("Any", "object") else f"{wanted}; this one returns {text}"
    if any(TASK_TYPE in names for names in (function.__globals__, function.__code__.co_names)):
        return None
    return f"{wanted}; if this one does, say so: `def {function.__name__}(...) -> TrainingTask`"


def wrong_arguments(function: Callable[..., object], arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with these keyword arguments; None when the function takes them."""
    try:
        signature = inspect.signature(function)
        signature.bind(**arguments)
    except ValueError:
        return None  # no signature to be had
    except TypeError as error:
        close = [match for name in arguments for match in _meant(name, list(signature.parameters))]
        hint = f"; did you mean {close[0]}?" if close else "."
        return f"{error}{hint} It takes {signature.replace(return_annotation=inspect.Signature.empty)}"
    parameters = signature.parameters
    wrong = (_wrong_type(name, value, parameters[name]) for name, value in arguments.items() if name in parameters)
    return next((each for each in wrong if each is not None), None)


_PLAIN: Mapping[object, tuple[type, ...]] = {
    int: (int,), "int": (int,), float: (int, float), "float": (int, float), bool: (bool,), "bool": (bool,),
    str: (str,), "str": (str,),
}  # fmt: skip
"""What may be given where an annotation is plain, as a type or (with postponed evaluation) as its name."""


def _wrong_type(name: str, value: object, parameter: inspect.Parameter) -> str | None:
    """That a value is not of the plain type that its parameter is annotated with; of other annotations nothing is
    said, nor of a value that is the default."""
    annotation = parameter.annotation
    types = _PLAIN.get(annotation) if isinstance(annotation, type | str) else None
    if types is None or value == parameter.default:
        return None
    if isinstance(value, types) and isinstance(value, bool) == (bool in types):  # in Python, True is an int
        return None
    said = annotation if isinstance(annotation, str) else annotation.__name__
    return f"{name}={value!r} is not of type {said}, which the function annotates it with"


def _meant(name: str, known: Sequence[str]) -> list[str]:
    return [] if name in known else difflib.get_close_matches(name, known, n=1)


def _called(
    import_path: str,
    make_task: Callable[..., object],
    arguments: Mapping[str, Any],
    batch_size: int | None,
    *,
    has_servers: bool,
) -> Verdict:
    from optimus_workers.task import TrainingTask

    call = f"{import_path}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    try:
        task = make_task(**arguments)
        if not isinstance(task, TrainingTask):
            problem = f"{import_path} must return a TrainingTask, not {_kind(task)}"
            return Verdict(ok=False, problem=problem, field="task")
        if has_servers and task.why_no_servers is not None:
            return Verdict(ok=False, problem=task.why_no_servers, field="architecture")
        n_examples = task.n_examples
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        named = any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in arguments)
        return _failed(f"{call} failed", error, "task_args" if named else "task")
    batch = batch_size or task.global_batch_size
    if batch > n_examples:
        problem = f"is {batch} and the data has {n_examples} examples only"
        return Verdict(ok=False, problem=problem, field="global_batch_size")
    return Verdict(ok=True, n_examples=n_examples, global_batch_size=batch)


def why_no_store(url: str, scratch: Path) -> str | None:
    """Why checkpoints could not be kept below this URL; None when what is there can be listed.

    A job whose store cannot be reached would hold its cores and make no step that lasts.
    """
    from optimus_workers.checkpoint.storage import StorageAway, open_storage

    socket.setdefaulttimeout(_STORE_SECONDS)
    try:
        open_storage(url, "optimus-trial", scratch).names()
    except StorageAway as error:
        return f"checkpoints cannot be kept there: {error}"
    return None


def _failed(what: str, error: BaseException, field: str) -> Verdict:
    """The error with the user's own line, which is the last one that is not in a library.

    Good when memory ran out: it may fit where it trains.
    """
    if isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY):
        return GOOD
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "optimus_workers" not in frame.filename and frame.filename[:1] != "<"]
    outside = [frame for frame in own if f"{os.sep}lib{os.sep}python" not in frame.filename]
    known = outside or own
    where = f" ({known[-1].filename}:{known[-1].lineno})" if known else ""
    said = str(error)[:500]
    return Verdict(ok=False, problem=f"{what}: {type(error).__name__}: {said}{where}", field=field)


def _kind(value: object) -> str:
    return "a built-in function" if inspect.isbuiltin(value) else f"a value of type {type(value).__name__}"


def _limit_memory() -> None:
    """Bound what this process may take, and let the kernel end it first. A lower limit that it has already stays."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = max(LEAST_MEMORY_BYTES, int(MEMORY_SHARE * machine))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> int:
    """Print the verdict; the exit code is 0 whatever it is."""
    job = json.load(sys.stdin)
    _limit_memory()
    # What the user's code prints must not be taken for the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    verdict = judge(job)
    answer.write(json.dumps(asdict(verdict)) + "\n")
    answer.flush()
    os._exit(0)  # threads and handlers of the user's code are not waited for


if __name__ == "__main__":
    sys.exit(main())
