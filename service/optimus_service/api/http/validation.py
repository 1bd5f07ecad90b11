"""Rewords pydantic's errors for people who did not write the code: which field, and what is allowed there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from optimus_contract import answers
from optimus_contract.codec import field_types
from optimus_contract.fields import GpuType, Name
from optimus_contract.message import About, FieldError, Message

MAX_ERRORS = 50
"""Errors named in one answer: a person reads a few, and a thousand bad samples are bad in the same way."""
_MAX_FIELD_LENGTH = 200
"""A client may send field names of any length; the answer does not repeat them in full."""
_LEAST_BEGINNING = 3
"""Characters of a field's name by which it is recognised: `env` is short for `environment`."""

Location = Sequence[str | int]


def field_errors(errors: Sequence[Mapping[str, Any]], body: type[Message] | None = None) -> list[answers.ProblemError]:
    """One entry per error of pydantic, at most `MAX_ERRORS`. `body` is the model that the request's body has."""
    return [
        answers.ProblemError(field=_path(_place(error)), message=_message(error, body)) for error in errors[:MAX_ERRORS]
    ]


def _place(error: Mapping[str, Any]) -> Location:
    """Where the error is; the check of a whole message may name the field that is meant."""
    cause = error.get("ctx", {}).get("error")
    return (*error["loc"], cause.field) if isinstance(cause, FieldError) else error["loc"]


def dotted(location: Location) -> str:
    """`workers.resources.cpu` for ("workers", "resources", "cpu"); `body` for the whole body."""
    return ".".join(str(part) for part in location)[:_MAX_FIELD_LENGTH] or "body"


def _path(location: Location) -> str:
    source, *rest = location
    if source == "header":
        return "-".join(part.capitalize() for part in str(rest[0]).split("-"))
    return dotted(rest)


def _message(error: Mapping[str, Any], body: type[Message] | None) -> str:
    kind, location = error["type"], error["loc"][1:]
    if kind == "missing":
        return "is required"
    if kind == "unexpected_keyword_argument":
        owner = _message_at(body, location[:-1])
        return "unknown field" + (_meant(str(location[-1]), list(field_types(owner))) if owner else "")
    if kind == "string_pattern_mismatch":
        return _pattern_message(str(error["ctx"]["pattern"]), location, body)
    if kind in ("dataclass_type", "dict_type"):
        inner = _message_at(body, location) if location else None
        return "must be an object" + (f"; its fields: {', '.join(field_types(inner))}" if inner else "")
    return _reworded(str(error["msg"]))


def _meant(name: str, allowed: Sequence[str]) -> str:
    """The fields that there are, and the one that was most likely meant."""
    close = difflib.get_close_matches(name[:_MAX_FIELD_LENGTH], allowed, n=1)
    if not close and len(name) >= _LEAST_BEGINNING:
        close = [each for each in allowed if each.startswith(name)][:1]
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{hint}; allowed here: {', '.join(allowed)}".replace("?;", "?")


def _pattern_message(pattern: str, location: Location, body: type[Message] | None) -> str:
    while location and isinstance(location[-1], int):  # an item of a list
        location = location[:-1]
    owner = _message_at(body, location[:-1])
    annotation = field_types(owner).get(str(location[-1])) if owner else None
    # Keys of an object and parts of a path have no annotation of their own here.
    abouts = (*_abouts(annotation), *_abouts(Name), *_abouts(GpuType))
    form = next((each.form for each in abouts if each.form and each.bounds.get("pattern") == pattern), "")
    return f"must have the form: {form}" if form else f"must match {pattern}"


def _abouts(annotation: Any) -> list[About]:
    """What is said of a field's type, or of a part of it as in `Name | None`."""
    own = [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, About)]
    parts = (annotation.__origin__,) if hasattr(annotation, "__metadata__") else get_args(annotation)
    return [*own, *(each for part in parts for each in _abouts(part))]


def _reworded(message: str) -> str:
    message = message.removeprefix("Value error, ").replace(" after validation", "")
    for subject in ("Input should ", "String should ", "List should ", "Dictionary should "):
        if message.startswith(subject):
            return "must " + message.removeprefix(subject)
    return message


def _message_at(kind: type[Message] | None, location: Location) -> type[Message] | None:
    """The message that is found by following field names from `kind`; list positions change nothing."""
    for part in location:
        if not isinstance(part, int):
            kind = _message_in(field_types(kind).get(part)) if kind else None
    return kind


def _message_in(annotation: Any) -> type[Message] | None:
    """The first message in a type like `list[Sample]` or `Usage | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return annotation
    return next((found for part in get_args(annotation) if (found := _message_in(part))), None)
