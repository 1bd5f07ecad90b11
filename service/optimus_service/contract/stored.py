"""Stored documents as bodies of answers. They are not requests: another release may have written them by other rules.

So an answer with many jobs never fails because of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast, get_args

from pydantic import TypeAdapter, ValidationError

from optimus_service.contract.basics import Body

_Body = TypeVar("_Body", bound=Body)
_Adapter = TypeAdapter[Any]


def as_stored(kind: type[_Body], document: object, **instead: object) -> _Body | None:
    """The document as a body, without its rules for new ones if it breaks any.

    A field of which the type is wrong, or that is not there, has its default, or `instead`; None where it has neither.
    """
    try:
        return kind.model_validate(document)
    except ValidationError:
        found = document if isinstance(document, Mapping) else {}
        values: dict[str, Any] = {**instead, **_values(kind, found)}
        missing = [name for name, field in kind.model_fields.items() if field.is_required() and name not in values]
        return None if missing else cast(_Body, kind.model_construct(None, **values))


_NOTHING = object()


def _values(kind: type[Body], document: Mapping[Any, Any]) -> dict[str, Any]:
    values = {name: _value(kind, name, document) for name in kind.model_fields}
    return {name: value for name, value in values.items() if value is not _NOTHING}


def _value(kind: type[Body], name: str, document: Mapping[Any, Any]) -> object:
    if name not in document:
        return _NOTHING
    value, annotation = document[name], kind.model_fields[name].annotation
    part = next((each for each in (annotation, *get_args(annotation)) if _is_body(each)), None)
    if part is not None and value is not None:
        nested = as_stored(part, value)
        return _NOTHING if nested is None else nested
    try:
        return _adapter(kind, name).validate_python(value)
    except ValidationError:
        return _NOTHING


def _is_body(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Body)


@lru_cache(maxsize=256)
def _adapter(kind: type[Body], name: str) -> _Adapter:
    """Of the field's type alone, without its bounds."""
    annotation: Any = kind.model_fields[name].annotation
    return TypeAdapter(annotation)
