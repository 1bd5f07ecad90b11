"""Rewords pydantic's errors for people who did not write the code: which field, and what is allowed there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from optimus_service.contract import ProblemErrorBody

MAX_ERRORS = 50
"""Errors named in one answer: a person reads a few, and a thousand bad samples are bad in the same way."""
_MAX_FIELD_LENGTH = 200
"""A client may send field names of any length; the answer does not repeat them in full."""

Location = Sequence[str | int]


def field_errors(errors: Sequence[Mapping[str, Any]], body: type[BaseModel] | None = None) -> list[ProblemErrorBody]:
    """One entry per error of pydantic, at most `MAX_ERRORS`. `body` is the model that the request's body has."""
    return [ProblemErrorBody(field=_path(error["loc"]), message=_message(error, body)) for error in errors[:MAX_ERRORS]]


def dotted(location: Location) -> str:
    """`workers.resources.cpu` for ("workers", "resources", "cpu"); `body` for the whole body."""
    return ".".join(str(part) for part in location)[:_MAX_FIELD_LENGTH] or "body"


def _path(location: Location) -> str:
    source, *rest = location
    if source == "header":
        return "-".join(part.capitalize() for part in str(rest[0]).split("-"))
    return dotted(rest)


def _message(error: Mapping[str, Any], body: type[BaseModel] | None) -> str:
    kind, location = error["type"], error["loc"][1:]
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        owner = _model_at(body, location[:-1])
        return "unknown field" + (_meant(str(location[-1]), list(owner.model_fields)) if owner else "")
    if kind == "string_pattern_mismatch":
        return _pattern_message(str(error["ctx"]["pattern"]), location, body)
    if kind in ("model_attributes_type", "model_type", "dict_type"):
        return "must be an object"
    return _reworded(str(error["msg"]))


def _meant(name: str, allowed: Sequence[str]) -> str:
    """The fields that there are, and the one that was most likely meant."""
    close = difflib.get_close_matches(name[:_MAX_FIELD_LENGTH], allowed, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"; allowed here: {', '.join(allowed)}{hint}"


def _pattern_message(pattern: str, location: Location, body: type[BaseModel] | None) -> str:
    owner = _model_at(body, location[:-1])
    field = owner.model_fields.get(str(location[-1])) if owner else None
    return f"must have the form: {field.description}" if field and field.description else f"must match {pattern}"


def _reworded(message: str) -> str:
    message = message.removeprefix("Value error, ")
    for subject in ("Input should ", "String should ", "List should ", "Dictionary should "):
        if message.startswith(subject):
            return "must " + message.removeprefix(subject)
    return message


def _model_at(model: type[BaseModel] | None, location: Location) -> type[BaseModel] | None:
    """The model that is found by following field names from `model`; list positions change nothing."""
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        if field is None:
            return None
        model = _model_in(field.annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model in a type like `list[Model]` or `Model | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)
