"""Dataclasses as single lines of JSON, and back with every field checked against its annotation.

What arrives from the network becomes a well-typed value or a `WireError`, never something in between. Understood
annotations: bool, int, float, str, None, unions, tuples, dict[str, X], string enumerations, literals and dataclasses of
these.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from optimus_workers.errors import WireError

MAX_LINE_BYTES = 1_048_576
"""A membership of 1024 tasks takes about a tenth of this."""

T = TypeVar("T")


def encode_line(message: Any, without: Collection[str] = ()) -> bytes:
    """`message` (a dataclass) as a line of JSON: its class's name under "type", then its fields but those `without`."""
    fields = {"type": type(message).__name__} | dataclasses.asdict(message)
    for name in without:
        del fields[name]
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


@overload
def decode_line(line: bytes, kinds: dict[str, type[T]]) -> T: ...


@overload
def decode_line(line: bytes, kinds: dict[str, type[T]], *, of_newer: bool) -> T | None: ...


def decode_line(line: bytes, kinds: dict[str, type[T]], *, of_newer: bool = False) -> T | None:
    """The message in one line, of one of `kinds` (by class name). Raises `WireError`.

    `of_newer`: a newer release wrote it: None for a message that is none of `kinds`, and unknown fields are left out.
    """
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"a line of {len(line)} bytes is too long")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a line of JSON: {error}") from error
    if not isinstance(fields, dict):
        raise WireError("not a JSON object")
    kind = fields.pop("type", None)
    if of_newer and isinstance(kind, str) and kind not in kinds:
        return None
    if not isinstance(kind, str) or kind not in kinds:
        raise WireError(f"unknown message type {str(kind)[:50]!r}")
    message: T = from_json(kinds[kind], fields, kind, of_newer=of_newer)
    return message


def from_json(annotation: Any, value: Any, where: str = "value", *, of_newer: bool = False) -> Any:
    """`value` (parsed JSON) as an instance of `annotation`. Raises `WireError` that names the field.

    `of_newer`: unknown fields of dataclasses are left out.
    """
    if dataclasses.is_dataclass(annotation):
        return _dataclass(annotation, value, where, of_newer)
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return _union(get_args(annotation), value, where, of_newer)
    if origin is tuple:
        return _tuple(get_args(annotation), value, where, of_newer)
    if origin is Literal:
        if value not in get_args(annotation):
            raise _wrong(where, annotation, value)
        return value
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(where, annotation, value)
        of = get_args(annotation)[1]
        return {key: from_json(of, item, f"{where}.{key[:50]}", of_newer=of_newer) for key, item in value.items()}
    return _scalar(annotation, value, where)


def _dataclass(annotation: Any, value: Any, where: str, of_newer: bool) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, annotation, value)
    hints, required = _fields(annotation)
    if of_newer:
        value = {name: item for name, item in value.items() if name in hints}
    if unknown := value.keys() - hints.keys():
        raise WireError(f"{where}: unknown fields {sorted(unknown)[:5]}")
    if missing := required - value.keys():
        raise WireError(f"{where}: missing fields {sorted(missing)[:5]}")
    read = {name: from_json(hints[name], item, f"{where}.{name}", of_newer=of_newer) for name, item in value.items()}
    return annotation(**read)


@cache
def _fields(annotation: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Field name → annotation, and the names of the fields without a default."""
    absent = dataclasses.MISSING
    required = [f.name for f in dataclasses.fields(annotation) if f.default is absent and f.default_factory is absent]
    return get_type_hints(annotation), frozenset(required)


def _union(choices: tuple[Any, ...], value: Any, where: str, of_newer: bool) -> Any:
    if value is None and NoneType in choices:
        return None
    errors: list[WireError] = []
    for choice in choices:
        try:
            return from_json(choice, value, where, of_newer=of_newer)
        except WireError as error:
            errors.append(error)
    raise errors[0]


def _tuple(items: tuple[Any, ...], value: Any, where: str, of_newer: bool) -> Any:
    if not isinstance(value, list):
        raise _wrong(where, tuple, value)
    if len(items) == 2 and items[1] is ...:
        return tuple(
            from_json(items[0], item, f"{where}[{index}]", of_newer=of_newer) for index, item in enumerate(value)
        )
    if len(items) != len(value):
        raise WireError(f"{where}: expected {len(items)} values, not {len(value)}")
    pairs = zip(items, value, strict=True)
    return tuple(
        from_json(kind, item, f"{where}[{index}]", of_newer=of_newer) for index, (kind, item) in enumerate(pairs)
    )


def _scalar(annotation: Any, value: Any, where: str) -> Any:
    if annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise _wrong(where, annotation, value) from error
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        if not isinstance(value, str) or value not in set(annotation):
            raise _wrong(where, annotation, value)
        return annotation(value)
    # `type` and not isinstance: a bool is not an int here.
    if type(value) is not annotation:
        raise _wrong(where, annotation, value)
    return value


def _wrong(where: str, annotation: Any, value: Any) -> WireError:
    return WireError(f"{where}: expected {getattr(annotation, '__name__', annotation)}, not {type(value).__name__}")
