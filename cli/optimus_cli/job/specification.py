"""Put a job's specification together from a file and flags, and trace a refused field back to where it came from."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from optimus_cli.errors import BadInput, FieldError, Refused
from optimus_cli.job.jobfile import JobFile
from optimus_contract.command import title_of
from optimus_contract.job_name import name_for


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag that sets one field of the specification; `value` None means that it was not given."""

    name: str
    field: tuple[str, ...]
    value: Any


def activated_python(environment: Mapping[str, str]) -> str | None:
    """The interpreter of the environment that is activated in the shell; None: none is."""
    directory = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    python = Path(directory, "bin", "python") if directory else None
    return str(python.absolute()) if python is not None and python.is_file() else None


@dataclass(frozen=True, slots=True)
class Specification:
    """What is sent to the service, and where each part of it came from."""

    document: dict[str, Any]
    file: JobFile | None
    flags: Mapping[tuple[str, ...], str]
    """The flags that were given, by the field they set."""

    def explain(self, refusal: Refused) -> BadInput | Refused:
        """The refusal in terms of the file's lines and the flags; unchanged when it names no field."""
        if not refusal.errors or refusal.exit_code != BadInput.exit_code:
            return refusal
        return BadInput("\n".join(self.place(error) for error in refusal.errors), refusal.errors)

    def place(self, error: FieldError) -> str:
        """What is wrong, and the flags or the place in the file that say so."""
        field = tuple(part for part in re.split(r"[.\[\]]+", error.field) if part)
        source = _longest_prefix(field, self.flags)
        if source is not None:
            return f"{self.flags[source]}: {error.message}"
        if within := [flag for path, flag in self.flags.items() if field and path[: len(field)] == field]:
            return f"{' and '.join(within)}: {error.message}"
        if self.file is None:
            return f"{error.field}: {error.message}"
        position = self.file.position(field)
        place = str(self.file.path) if position is None else f"{self.file.path}:{position.line}:{position.column}"
        return f"{place}: {error.field}: {error.message}"


def assemble(
    file: JobFile | None,
    flags: Iterable[Flag],
    directory: Path,
    like: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
    python: str | None = None,
) -> Specification:
    """Flags over the file's fields, relative directories made absolute, defaults of the command line filled in.

    `directory` is where the command line was called: tasks import from there when the task's module is found there.
    `like`: the specification of a job that this one resembles, without a file; it says everything. `command`: what
    followed `--`. `python`: the interpreter of the activated environment, if the service runs on this machine.
    """
    given = [flag for flag in flags if flag.value is not None]
    document: dict[str, Any] = _copy(like or {}) if file is None else _copy(file.document)
    for flag in given:
        set_field(document, flag)
    if command is not None:
        _set_command(document, command, None if file is None else file.path, [flag.name for flag in given])
    if "task" not in document and "command" not in document and file is None:
        raise BadInput(
            "Give a job file, --task MODULE:NAME (for example --task optimus_workers.zoo.digits:mlp), "
            "or a training script (-- python train.py)."
        )
    # A file without a task, which may be misspelled in it, goes to the service: that knows the fields.
    runs = document.get("command")
    if runs is not None and python is not None:
        document.setdefault("python", python)
    trains = title_of(runs) if runs and is_command(runs) else document.get("task", "")
    if "name" not in document and isinstance(trains, str):
        document["name"] = name_for(trains)
    if like is None or "working_directory" in (flag.field[0] for flag in given):
        _settle_directory(document, file, directory)
    return Specification(document, file, {flag.field: flag.name for flag in given})


def is_command(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def _set_command(document: dict[str, Any], command: Sequence[str], file: Path | None, flags: Collection[str]) -> None:
    """Raises `BadInput`, in words of what was typed, where the job trains something else already."""
    if "--from" in flags:
        raise BadInput(
            "--from starts a task with another job's parameters. What stands after -- is a script, which loads a "
            "checkpoint by an argument of its own: leave out --from, or what stands after --."
        )
    for name in ("task", "command"):
        if document.get(name) is not None:
            says = "--task" if f"--{name}" in flags else f"the {name} in {file}"
            raise BadInput(f"Leave out {says}, or the command after --: a job trains one thing.")
    document["command"] = list(command)


def parse_assignments(
    flag: str, assignments: Sequence[str], *, typed: bool, form: str = "KEY=VALUE"
) -> dict[str, Any] | None:
    """`["lr=0.1", "deep=true"]` as a mapping; with `typed`, numbers and booleans are read as such. None when empty.
    `form`: what the flag expects, in words of its help."""
    if not assignments:
        return None
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key:
            raise BadInput(f"{flag} {assignment!r}: expected {form}")
        values[key] = scalar(value) if typed else value
    return values


def parse_target(flag: str, text: str | None) -> dict[str, Any] | None:
    """`test_accuracy>=0.95` or `perplexity<=20` as `convergence.target_metric`; None for None."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([^<>=\s]+)\s*([<>])=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*", text)
    if match is None:
        raise BadInput(f"{flag} {text!r}: expected NAME>=VALUE or NAME<=VALUE, such as test_accuracy>=0.95")
    return {"name": match[1], "at_least" if match[2] == ">" else "at_most": float(match[3])}


def parse_elastic(flag: str, text: str | None) -> dict[str, int] | None:
    """`32:512:64` as `elastic_batch`: smallest and largest batch, examples that one worker computes at once."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,9})\s*:\s*(\d{1,9})\s*:\s*(\d{1,9})\s*", text)
    if match is None:
        raise BadInput(f"{flag} {text!r}: expected MINIMUM:MAXIMUM:PER_PASS, such as 32:512:64")
    return dict(zip(("minimum", "maximum", "per_pass"), map(int, match.groups()), strict=True))


def scalar(text: str) -> str | int | float | bool:
    """A number or a boolean where the text is one."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        return float(text)
    return text


def _copy(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in document.items()}


def set_field(document: dict[str, Any], flag: Flag) -> None:
    """Set one field; mappings given by a flag (--set, --env) are merged into the file's."""
    *parents, last = flag.field
    for parent in parents:
        inner = document.get(parent)
        if not isinstance(inner, dict):
            inner = document[parent] = {}
        document = inner
    if isinstance(flag.value, dict) and isinstance(document.get(last), dict):
        document[last] = {**document[last], **flag.value}
    else:
        document[last] = flag.value


def _settle_directory(document: dict[str, Any], file: JobFile | None, directory: Path) -> None:
    stated = document.get("working_directory")
    if isinstance(stated, str):
        base = directory if file is None or "working_directory" not in file.document else file.path.parent
        document["working_directory"] = str((base / stated).resolve())
    elif stated is None and document.get("command") is not None:
        base = directory if file is None or file.document.get("command") is None else file.path.parent
        document["working_directory"] = str(base.resolve())
    elif stated is None and isinstance(task := document.get("task"), str) and _means_module_in(directory, task):
        document["working_directory"] = str(directory.resolve())


def _means_module_in(directory: Path, task: str) -> bool:
    """Whether the task's module is in `directory`, or would be but for a slip of the keyboard.

    The service looks there then, and says what was meant.
    """
    top = task.partition(":")[0].partition(".")[0]
    listed = list(directory.iterdir()) if os.access(directory, os.R_OK) else []
    here = {path.stem for path in listed if path.suffix == ".py" or path.is_dir()}
    if top in here or not top.isidentifier():
        return top in here
    return bool(difflib.get_close_matches(top, here, n=1)) and importlib.util.find_spec(top) is None


def _longest_prefix(field: tuple[str, ...], known: Mapping[tuple[str, ...], str]) -> tuple[str, ...] | None:
    for length in range(len(field), 0, -1):
        if field[:length] in known:
            return field[:length]
    return None
