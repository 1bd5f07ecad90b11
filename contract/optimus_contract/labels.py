"""Labels of jobs: names and values are those of Kubernetes, so that a TrainingJob's labels are its job's."""

from __future__ import annotations

import re

from optimus_contract.message import Check

MAX_LABELS = 64
MAX_ASKED_LABELS = 16
"""That jobs are chosen by: each is a condition of its own, and a database plans them together."""
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$)({_WORD}/)?{_WORD}", re.ASCII)
_VALUE = re.compile(rf"(?=.{{0,63}}$)({_WORD})?", re.ASCII)


def is_label(name: str, value: str) -> bool:
    """Whether a job may have this label."""
    return bool(_NAME.fullmatch(name) and _VALUE.fullmatch(value))


def _checked(labels: dict[str, str | None]) -> dict[str, str | None]:
    for name, value in labels.items():
        if not is_label(name, value or ""):
            raise ValueError(
                f"{name[:100]!r}: {(value or '')[:100]!r} is no label: names and values have letters, digits, -, _ and "
                "., a name also one /; they begin and end with a letter or digit; a value has 63 characters at most"
            )
    return labels


SCHEMA = {
    "propertyNames": {"pattern": rf"^(?=.{{1,253}}$)({_WORD}/)?{_WORD}$"},
    "additionalProperties": {"type": "string", "pattern": rf"^(?=.{{0,63}}$)({_WORD})?$"},
}
"""The same as a JSON schema."""
LABELS = Check(_checked)
"""Metadata of a field with labels; a value of None is one that is to go."""
