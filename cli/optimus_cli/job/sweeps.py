"""Many specifications from one: each combination of the values that `--sweep` names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from optimus_cli.errors import BadInput, FieldError, Refused
from optimus_cli.job.flags import FLAGS
from optimus_cli.job.specification import Flag, Specification, scalar, set_field
from optimus_contract.codec import field_types
from optimus_contract.fields import is_label
from optimus_contract.job import JobSpec
from optimus_contract.job_name import MAX_NAME
from optimus_contract.limits import MAX_BATCH_JOBS

SWEEP_LABEL = "sweep"
_LONGEST_VALUE = 63
"""Of a label."""
_FIELD_OF_FLAG = {flag.name.removeprefix("--"): flag.field for flag in FLAGS}
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
    document["labels"] = labels | (document.get("labels") or {})
    document["name"] = _name(str(document.get("name", "job")), values, index)
    return replace(specification, document=document, flags=flags)


def _apply(document: dict[str, Any], name: str, value: str) -> tuple[str, ...]:
    """Set what is meant by the name; where it is."""
    field = _FIELD_OF_FLAG.get(name) or tuple(name.split("."))
    if field[0] in field_types(JobSpec):
        set_field(document, Flag(name, field, scalar(value)))
        return field
    command = document.get("command")
    if command:
        place = f"{{{name}}}"
        has_place = any(place in word for word in command)
        option = [] if has_place else [f"--{name}", value]
        document["command"] = [word.replace(place, value) for word in command] + option
        return ("command",)
    field = ("task_args", name)
    set_field(document, Flag(name, field, scalar(value)))
    return field


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
