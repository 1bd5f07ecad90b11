"""Many specifications from one: each combination of the values that `--sweep` names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from optimus_cli.errors import BadInput, FieldError, Refused
from optimus_cli.job.flags import FLAGS, FieldFlag
from optimus_cli.job.specification import Flag, Specification, is_command, scalar, set_field
from optimus_contract.codec import field_types
from optimus_contract.fields import is_label
from optimus_contract.job import TASK_ONLY, JobSpec
from optimus_contract.job_name import MAX_NAME
from optimus_contract.limits import MAX_BATCH_JOBS

SWEEP_LABEL = "sweep"
_LONGEST_VALUE = 63
"""Of a label."""
_BY_NAME = {flag.name.removeprefix("--"): flag for flag in FLAGS}
_BY_FIELD = {flag.field: flag for flag in FLAGS}
_IN_BATCH = re.compile(r"jobs\.(\d+)\.?(.*)")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What differs, and its values as they were written."""

    name: str
    values: tuple[str, ...]


def parse_sweeps(texts: Sequence[str]) -> list[Sweep]:
    """`["lr=1e-4,3e-4"]`. Raises `BadInput`."""
    found: list[Sweep] = []
    for text in texts:
        name, separator, values = text.partition("=")
        each = tuple(value.strip() for value in values.split(","))
        if not (name and separator and all(each)):
            raise BadInput(f"--sweep {text!r}: expected NAME=VALUE,VALUE such as lr=1e-4,3e-4")
        if len(set(each)) < len(each):
            raise BadInput(f"--sweep {text!r}: names a value twice")
        if any(name == other.name for other in found):
            raise BadInput(f"--sweep {text!r}: {name} is given twice; put all its values into one --sweep")
        found.append(Sweep(name, each))
    n_jobs = prod(len(sweep.values) for sweep in found)
    if n_jobs > MAX_BATCH_JOBS:
        raise BadInput(f"--sweep: makes {n_jobs} jobs; one request has at most {MAX_BATCH_JOBS}: give fewer values")
    return found


def swept(specification: Specification, sweeps: Sequence[Sweep], sweep_id: str) -> list[Specification]:
    """A specification for each combination, with a name and labels that say which it is.

    `sweep_id` begins the label `sweep` that all of them have, so that they are found and cancelled together.
    """
    if not sweeps:
        return [specification]
    base = specification.document.get("name")
    together = _word(f"{base}-{sweep_id}"[-_LONGEST_VALUE:])
    return [
        _one(specification, dict(zip((sweep.name for sweep in sweeps), values, strict=True)), index, together)
        for index, values in enumerate(product(*(sweep.values for sweep in sweeps)))
    ]


def _one(specification: Specification, values: Mapping[str, str], index: int, together: str) -> Specification:
    document: dict[str, Any] = specification.document | {
        name: dict(value) for name, value in specification.document.items() if isinstance(value, dict)
    }
    flags = dict(specification.flags)
    for name, value in values.items():
        field = _apply(document, name, value)
        flags[field] = f"--sweep {name}={value}"
    labels = {SWEEP_LABEL: together} | {_word(_last(name)): _word(value) for name, value in values.items()}
    labels = {name: value for name, value in labels.items() if name and is_label(name, value)}
    own = document.get("labels") or {}
    if isinstance(own, dict):  # of anything else the service says what is wrong
        document["labels"] = labels | own
    document["name"] = _name(str(document.get("name", "job")), values, index)
    return replace(specification, document=document, flags=flags)


def _apply(document: dict[str, Any], name: str, value: str) -> tuple[str, ...]:
    """Set what is meant by the name; where it is."""
    stated = document.get("command")
    command = stated if is_command(stated) else []
    place = f"{{{name}}}"
    flag = _BY_NAME.get(name)
    field = tuple(name.split(".")) if flag is None else flag.field
    is_field = field[0] in field_types(JobSpec)
    if any(place in word for word in command):
        document["command"] = [word.replace(place, value) for word in command]
        return ("command",)
    if command and (not is_field or (field[0] in TASK_ONLY and "." not in name)):
        document["command"] = [*command, f"--{name}", value]
        return ("command",)
    if not is_field:
        field = ("task_args", name)
    set_field(document, Flag(name, field, _read(flag or _BY_FIELD.get(field), value)))
    return field


def _read(flag: FieldFlag | None, text: str) -> Any:
    """The value as the flag reads it."""
    if flag is None:
        return scalar(text)
    if flag.kind == list[str]:
        return flag.parse([text])
    if flag.kind is Path:
        return flag.parse(Path(text).absolute())
    return flag.parse(text if flag.kind is str else scalar(text))


def _name(base: str, values: Mapping[str, str], index: int) -> str:
    """`digits-lr-1e-4`; where that is too long, the number of the combination stands for its values."""
    said = "-".join(f"{_last(name)}-{value}" for name, value in values.items())
    end = re.sub(r"[^a-z0-9]+", "-", said.lower()).strip("-")
    if not end or len(base) + 1 + len(end) > MAX_NAME:
        end = str(index)
    return f"{base[: MAX_NAME - 1 - len(end)].rstrip('-')}-{end}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _word(text: str) -> str:
    """As a label may have it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text).strip("-_.")[:_LONGEST_VALUE].rstrip("-_.")


def explained(refusal: Refused, specifications: Sequence[Specification]) -> BadInput | Refused:
    """The refusal of many jobs in terms of their files and flags; unchanged where it names none of them."""
    if not refusal.errors or refusal.exit_code != BadInput.exit_code:
        return refusal
    lines = dict.fromkeys(_line(error, specifications) for error in refusal.errors)
    return BadInput("\n".join(lines), refusal.errors)


def _line(error: FieldError, specifications: Sequence[Specification]) -> str:
    match = _IN_BATCH.fullmatch(error.field)
    if match is None or int(match[1]) >= len(specifications):
        return f"{error.field}: {error.message}"
    specification = specifications[int(match[1])]
    return specification.place(replace(error, field=match[2] or "body"))
