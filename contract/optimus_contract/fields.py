"""Types of fields that several messages have."""

from __future__ import annotations

import re
from typing import Annotated

from optimus_contract.limits import MAX_COUNT, MAX_POSIX_SECONDS
from optimus_contract.message import FINITE, About, Check, Convert

_NAME_FORM = "lower-case letters, digits and -, 63 at most"
_TYPE_FORM = "letters, digits, -, _ and ., 63 at most"


def zero_or(least: float) -> Check:
    """Metadata of a number that is 0 or above, and not so small that it can only be a slip."""

    def check(value: float | None) -> float | None:
        if value is not None and 0 < value < least:
            raise ValueError(f"must be 0, or {least:g} at least")
        return value

    return Check(check)


Name = Annotated[str, About(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", form=_NAME_FORM)]
GpuType = Annotated[
    str, About(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", form=_TYPE_FORM)
]
TaskName = Annotated[str, About(min_length=1, max_length=253)]
MetricName = Annotated[str, About(min_length=1, max_length=100)]
Count = Annotated[int, About(ge=0, le=MAX_COUNT)]
PosixSeconds = Annotated[float, FINITE, About(ge=0, le=MAX_POSIX_SECONDS)]
Duration = Annotated[float, FINITE, About(ge=0, le=MAX_POSIX_SECONDS)]
"""Seconds."""

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How a number is written that JSON has no number for."""


def _named_number(value: object) -> object:
    return float(value) if isinstance(value, str) and value in NOT_FINITE else value


Measured = Annotated[float, Convert(_named_number, also={"type": "literal", "expected": list(NOT_FINITE)})]
"""A measured number, which may be NaN or infinite; then it is written as one of the strings `NOT_FINITE`."""

_SIZE = re.compile(r"^ *([0-9]{1,16}(?:\.[0-9]{1,16})?) *(|k|M|G|T|Ki|Mi|Gi|Ti)B? *$")
_UNIT_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNIT_BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_size(value: object) -> object:
    """A size like `512Mi` as bytes; anything but text as it is. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or len(value) > 100:
        raise ValueError("expected bytes or a size like 512Mi or 2Gi")
    return int(float(match[1]) * _UNIT_BYTES[match[2]])


SIZE = Convert(parse_size, also={"type": "str", "pattern": _SIZE.pattern, "max_length": 100})
"""Metadata of a number of bytes that may be written like 512Mi."""


# --- labels of jobs: names and values are those of Kubernetes --------------------------------------------------------

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


LABELS_SCHEMA = {
    "propertyNames": {"pattern": rf"^(?=.{{1,253}}$)({_WORD}/)?{_WORD}$"},
    "additionalProperties": {"type": "string", "pattern": rf"^(?=.{{0,63}}$)({_WORD})?$"},
}
"""The same as a JSON schema."""
LABELS = Check(_checked)
"""Metadata of a field with labels; a value of None is one that is to go."""
