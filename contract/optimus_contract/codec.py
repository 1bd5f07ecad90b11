"""Messages to and from JSON values, without the checks that requests are put to.

What another release may have written is read here: a field that is not known is ignored, and a field
that is missing or has a wrong type has its default. So what is read is not written back over what was stored: it would
lose the fields of a newer release.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from optimus_contract.message import Message

AnyMessage = TypeVar("AnyMessage", bound=Message)
Reader = Callable[[Any], Any]
"""Raises `Unreadable` if the value is not of its type."""
_AS_THEY_ARE = frozenset({int, str, bool, type(None)})
"""Types whose values are JSON values: of a column of samples, all are looked at together."""


class Unreadable(ValueError):
    """What is not the message that it should be; the text names the field."""

    def __init__(self, why: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(path)}: {why}" if path else why)
        self.why = why
        self.path = path

    def inside(self, name: str) -> Unreadable:
        """The same error, seen from the message that has the field `name`."""
        return Unreadable(self.why, (name, *self.path))


def read(kind: type[AnyMessage], document: object, *, strict: bool = False, **instead: object) -> AnyMessage:
    """The message that a JSON object says.

    `strict`: a field of a wrong type is an error, at any depth. `instead`: what a field has that the object does not
    say, in place of the field's own default.

    Raises:
        Unreadable: it is no object, or a field without a default is missing or wrong.
    """
    document = kind.prepared(document)
    if not isinstance(document, Mapping):
        raise Unreadable(f"{document!r:.200} is not an object")
    values = dict(instead)
    for name, reader, needed in _readers(cast(Any, kind), strict):
        wrong: Unreadable | None = None
        if name in document:
            try:
                values[name] = reader(document[name])
                continue
            except Unreadable as error:
                wrong = error.inside(name)
        if wrong is not None and strict and (document[name] is not None or needed):
            raise wrong
        if needed and name not in values:
            raise wrong or Unreadable("is missing", (name,))
    return kind(**values)


def write(message: Message, *, without_none: bool = False) -> dict[str, Any]:
    """The message as JSON values: NaN and infinities as the strings that JSON readers know, moments as RFC 3339."""
    found = {name: _plain(getattr(message, name), without_none) for name in _names(cast(Any, type(message)))}
    return {name: value for name, value in found.items() if value is not None} if without_none else found


def json_number(value: float) -> float | str:
    """The number, or where JSON has no number for it one of the strings "NaN", "Infinity", "-Infinity"."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _plain(value: Any, without_none: bool) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Message):
        return write(value, without_none=without_none)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(name): _plain(each, without_none) for name, each in value.items()}
    kinds = set(map(type, value))
    if kinds <= _AS_THEY_ARE or (kinds == {float} and all(map(math.isfinite, value))):
        return list(value)
    return [_plain(each, without_none) for each in value]


# --- readers, made once per type -------------------------------------------------------------------------------------


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in _fields(kind))


@cache
def _readers(kind: Any, strict: bool) -> tuple[tuple[str, Reader, bool], ...]:
    """Of each field: its name, how it is read, and whether it must be there."""
    hints = field_types(kind)
    return tuple((each.name, _reader(hints[each.name], strict), not has_default(each)) for each in _fields(kind))


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


def field_types(kind: type[Message]) -> dict[str, Any]:
    """The annotations of a message's fields, with their metadata."""
    key: Any = kind
    return _field_types(key)


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in _fields(kind)}


def has_default(field: Field[Any]) -> bool:
    """Whether a message may leave the field out."""
    return field.default is not MISSING or field.default_factory is not MISSING


def _reader(annotation: Any, strict: bool) -> Reader:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = _reader(arguments[0], strict)
        made = [each.function for each in arguments[1:] if hasattr(each, "converts")]
        return inner if not made else lambda value: inner(_converted(made[0], value))
    if origin in (Union, types.UnionType):
        readers = [_reader(each, strict) for each in arguments]
        return _first_of(readers, may_be_none=type(None) in arguments)
    if origin is Literal:
        return _one_of(arguments)
    if origin is list:
        item = _reader(arguments[0], strict)
        return lambda value: [item(each) for each in _instance(value, list, "a list")]
    if origin is dict:
        item = _reader(arguments[1], strict)
        return lambda value: {str(name): item(each) for name, each in _instance(value, Mapping, "an object").items()}
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return lambda value: read(annotation, value, strict=strict)
    return _SCALARS[annotation]


def _converted(function: Callable[[Any], object], value: Any) -> object:
    try:
        return function(value)
    except ValueError as error:
        raise Unreadable(str(error)) from error


def _instance(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise Unreadable(f"{value!r:.200} is not {name}")
    return value


def _first_of(readers: list[Reader], *, may_be_none: bool) -> Reader:
    def read_first(value: Any) -> Any:
        if may_be_none and value is None:  # most fields that may be left out are
            return None
        # Not the error itself: what is kept of it here would hold it, and it holds the frames of all callers. These
        # would wait for the garbage collector with all that they know.
        first: tuple[str, tuple[str, ...]] | None = None
        for reader in readers:
            try:
                return reader(value)
            except Unreadable as error:
                first = first or (error.why, error.path)
        raise Unreadable(*first or (f"{value!r:.200}",))

    return read_first


def _one_of(allowed: tuple[Any, ...]) -> Reader:
    def read_one(value: Any) -> Any:
        if value not in allowed:
            raise Unreadable(f"{value!r:.200} is none of {', '.join(map(str, allowed))}")
        return value

    return read_one


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{value!r:.200} is not a number")
    return value


def _whole(value: Any) -> int:
    if _number(value) != int(value):
        raise Unreadable(f"{value!r:.200} is not a whole number")
    return int(value)


def _nothing(value: Any) -> None:
    if value is not None:
        raise Unreadable(f"{value!r:.200} is not null")


_SCALARS: dict[Any, Reader] = {
    Any: lambda value: value,
    str: lambda value: _instance(value, str, "text"),
    bool: lambda value: _instance(value, bool, "true or false"),
    int: _whole,
    float: _number,
    type(None): _nothing,
    datetime: lambda value: (
        value if isinstance(value, datetime) else datetime.fromisoformat(_instance(value, str, "a moment"))
    ),
}
