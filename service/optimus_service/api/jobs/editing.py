"""What of a submitted job may be changed, by `PATCH /v1/jobs/{id}` or by changing its TrainingJob. Pure.

`python -m optimus_service.api.jobs.editing` prints the table of docs/training-job.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from optimus_contract.change import CHANGEABLE, JobChange, Path
from optimus_contract.codec import field_types, write
from optimus_contract.job import TASK_ONLY, JobSpec
from optimus_service.requests import checked

Json = dict[str, Any]

_WHY_FIXED: Mapping[Path, str] = {
    ("workers", "resources"): "the tasks that run hold what they were started with, and so do the books",
    ("servers", "resources"): "as of workers",
    ("gpu_types",): "the GPUs of `resources` are of these types",
    ("architecture",): "workers with servers and workers without speak different protocols",
    ("project",): "what it has used counts for that project",
}
"""Fields that are worth a reason. All others say what is trained and how, and tasks read them when they start."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What another specification means for the job."""

    spec: Json
    """The job's specification with what may change as it is wanted."""
    changed: bool
    """Whether that is another one than before."""
    fixed: tuple[str, ...]
    """Fields that differ and cannot be changed any more: they stay as they are."""
    changes: Mapping[str, tuple[object, object]]
    """Old and new value of what does change, by field."""


def merged(present: Mapping[str, Any], change: JobChange) -> Json:
    """The stored specification of a job with a change in it, as far as this release knows its fields.

    Whether it can be is another matter.
    """
    known = field_types(JobSpec)
    spec = {name: deepcopy(value) for name, value in _completed(present).items() if name in known}
    said = write(change, without_none=True)
    for field in said.pop("unset"):
        _put(spec, tuple(field.split(".")), None)
        if field == "deadline":
            spec["deadline_seconds"] = None
    if {"deadline", "deadline_seconds"} & said.keys():
        spec["deadline"] = spec["deadline_seconds"] = None
    labels = {**spec["labels"], **change.labels}
    for name in ("workers", "servers", "convergence"):
        spec[name] = {**spec[name], **said.pop(name)}
    return {**spec, **said, "labels": {name: value for name, value in labels.items() if value is not None}}


def edit_of(present: Mapping[str, Any], wanted: JobSpec) -> Edit:
    """Compare the stored specification of a job with another one."""
    before, after = _completed(present), write(wanted)
    spec = deepcopy(before)
    fixed = []
    for path in _differences(before, after):
        if path in CHANGEABLE:
            _put(spec, path, _at(after, path))
        else:
            fixed.append(".".join(path))
    return Edit(spec, spec != before, tuple(sorted(fixed)), dict(_changes(before, spec)))


def _changes(before: Json, after: Json, *path: str) -> Iterator[tuple[str, tuple[object, object]]]:
    """Fields with different values, down to single ones."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changes(old, new, *path, name)
        elif old != new:
            yield ".".join((*path, name)), (old, new)


def table() -> str:
    """Which fields may be changed, in Markdown."""
    rows = ["| field of `spec` | may be changed | |", "|---|---|---|"]
    of_spec = {path: what for path, what in CHANGEABLE.items() if path not in (("name",), ("labels",))}
    rows += [f"| `{'.'.join(path)}` | yes | {what} |" for path, what in of_spec.items()]
    rows += [f"| `{'.'.join(path)}` | no | {why} |" for path, why in _WHY_FIXED.items()]
    rows.append("| everything else | no | tasks have read it when they started |")
    return "\n".join(rows) + "\n"


def _completed(present: Mapping[str, Any]) -> Json:
    """With fields that this release added, as they would be by default: nobody has changed those.

    Fields that only a newer release knows stay as they are, for when that one is back. What no script reads an earlier
    release took of scripts as well: it goes.
    """
    known = field_types(JobSpec)
    if present.get("architecture") == "script":
        present = {name: value for name, value in present.items() if name not in TASK_ONLY}
    newer = {name: value for name, value in present.items() if name not in known}
    try:
        return write(checked(JobSpec, {name: value for name, value in present.items() if name in known})) | newer
    except ValidationError:  # stored by a release with other rules
        return dict(present)


def _differences(before: Json, after: Json) -> Iterator[Path]:
    """Fields with different values, of those that an object can have; those of workers and servers one by one."""
    for name in sorted(after):
        old, new = before.get(name), after.get(name)
        if name in ("workers", "servers") and isinstance(old, dict) and isinstance(new, dict):
            yield from ((name, part) for part in sorted({*old, *new}) if old.get(part) != new.get(part))
        elif old != new:
            yield (name,)


def _at(document: Json, path: Path) -> Any:
    for name in path:
        document = document[name]
    return document


def _put(document: Json, path: Path, value: Any) -> None:
    _at(document, path[:-1])[path[-1]] = value


if __name__ == "__main__":
    sys.stdout.write(table())
