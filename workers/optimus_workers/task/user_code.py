"""Loads the user's training code by its import path, `package.module:name`, and marks the errors that it raises."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from optimus_contract.job import JobSpec
from optimus_workers.errors import ConnectionOver, SpecificationError, TaskError
from optimus_workers.task.definition import TrainingTask


def load_task(
    import_path: str, args: Mapping[str, Any] | None = None, working_directory: str | Path | None = None
) -> TrainingTask:
    """Import `module:name` (from `working_directory` first, when given) and call it with `args` as keywords.

    Raises `TaskError`; when the user's code raised, its exception with the traceback is the `__cause__`.
    """
    if working_directory is not None and str(working_directory) not in sys.path:
        sys.path.insert(0, str(working_directory))
    make_task = _find(import_path)
    try:
        task = make_task(**(args or {}))
    except (Exception, SystemExit) as error:
        raise TaskError(f"{import_path}({_spelled(args)}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(task, TrainingTask):
        raise TaskError(f"{import_path} must return a TrainingTask, not {type(task).__name__}")
    return task


def load_job_task(spec: JobSpec) -> TrainingTask:
    """The task of a job with the job's values in place of the task's own; an elastic batch begins with the smallest.

    Raises `TaskError`, as `load_task` does, and where the batch is larger than the data.
    """
    task = load_task(spec.task or "", spec.task_args, spec.working_directory)
    elastic = spec.elastic_batch
    task = task.with_global_batch_size(spec.global_batch_size if elastic is None else elastic.minimum)
    if task.global_batch_size > task.n_examples:
        raise TaskError(
            f"global_batch_size is {task.global_batch_size} and the data has {task.n_examples} examples only"
        )
    return task.with_max_gradient_norm(spec.max_gradient_norm)


def _find(import_path: str) -> Callable[..., object]:
    module_name, colon, name = import_path.partition(":")
    if not (colon and module_name and name):
        raise TaskError(f"{import_path!r} is not of the form package.module:name")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise TaskError(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise TaskError(f"{module_name} has no {name!r} ({module.__file__})")
    if not callable(found):
        raise TaskError(f"{import_path} must be a function that returns a TrainingTask, not {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _spelled(args: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in (args or {}).items())


# --- what the user's code raises -------------------------------------------------------------------------------------

T = TypeVar("T")


class UserCodeFailed(Exception):
    """The user's code raised; its exception is the cause."""


def run_user_code(call: Callable[[], T]) -> T:
    """The result of the user's code. What it raises becomes `UserCodeFailed`."""
    try:
        return call()
    except ConnectionOver:  # interrupted, or to be repeated: nothing that the user's code did wrong
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeFailed(str(error)) from error


def explained(error: UserCodeFailed | SystemExit) -> str:
    """The traceback of what the user's code raised, for the job's failure."""
    cause = error.__cause__ or error
    if isinstance(cause, SpecificationError):
        return f"{cause}\n"  # it says all; no line of the user's code is at fault
    text = "".join(traceback.format_exception(cause))
    return text + _EXITED if "\nSystemExit" in text else text  # maybe as the cause, or in the prefetching process


_EXITED = (
    "The training code called sys.exit(); "
    "a worker trains until its job has ended. To end the job as failed, raise an error instead.\n"
)
