"""Reads a JSON document as what its fields are declared to be: like the contract's messages, but without pydantic.

Declared is all in the annotations: types, `About` with bounds, what may be left out. An unknown field, a wrong type
and a number out of its bounds, NaN and infinite ones among them, are errors that name the field and what is allowed.
"""

from __future__ import annotations

import json
import math
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import repeat
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin

from optimus_contract.codec import field_types, has_default
from optimus_contract.message import About, Check, Message

Bounds = Mapping[str, Any]
_NO_BOUNDS: Bounds = {}
_LONGEST_SHOWN = 40


class Line(Message):
    """Base of what is declared in a trace."""

    __slots__ = ()
    OF: ClassVar[str]
    """What has these fields: `of a job`."""
    MAY_HAVE_MORE: ClassVar[bool] = False
    """Fields that are not known are left out."""


AnyLine = TypeVar("AnyLine", bound=Line)


class NotDeclared(ValueError):
    """A value is not what is declared; the text names its field."""


def parsed(text: str) -> Any:
    """What a line of JSON says.

    Raises:
        ValueError: it is none, nested too deeply, a number is too long, or a field is there twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except NotDeclared:
        raise
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.colno}") from error
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    except ValueError as error:  # the limit on digits that Python puts on integers
        raise ValueError("it has a number with too many digits") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise NotDeclared(f"{shown(name)} is there twice in one object")
    return found


def declared(kind: type[AnyLine], document: object) -> AnyLine:
    """The document, with the defaults of what it leaves out.

    Raises:
        NotDeclared: a field of it is not what is declared.
    """
    return cast(AnyLine, _line(kind, document, ""))


def _line(kind: type[Line], document: object, path: str) -> Line:
    if not isinstance(document, dict):
        raise NotDeclared(f"{path or 'it'} is {shown(document)}, but must be an object")
    hints = field_types(kind)
    unknown = [] if kind.MAY_HAVE_MORE else sorted(document.keys() - hints.keys())
    if unknown:
        raise NotDeclared(f"unknown field {unknown[0]!r} {kind.OF}; there are {', '.join(sorted(hints))}")
    return kind(**dict(_values(kind, document, path, hints)))


def _values(kind: Any, document: dict[str, Any], path: str, hints: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for field in fields(kind):
        name = field.name
        where = f"{path}.{name}" if path else name
        if name in document:
            yield name, _value(hints[name], document[name], where, _NO_BOUNDS)
        elif not has_default(field):
            raise NotDeclared(f"{where} is missing")


def _value(annotation: Any, value: Any, path: str, bounds: Bounds) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        said = {
            name: each for about in arguments[1:] if isinstance(about, About) for name, each in about.bounds.items()
        }
        return _value(arguments[0], value, path, {**bounds, **said})
    if origin in (Union, types.UnionType):
        choices = [each for each in arguments if each is not type(None)]
        if value is None and len(choices) < len(arguments):
            return None
        fitting = next((each for each in choices if each is type(value)), choices[0])
        return _value(fitting, value, path, bounds)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _wrong(path, value, " or ".join(arguments))
        return value
    if origin in (list, tuple):
        return _items(origin, arguments, value, path, bounds)
    if origin is dict:
        if not isinstance(value, dict):
            raise NotDeclared(f'{path} has values by their names, such as {{"a100": 4}}, not {shown(value)}')
        return {
            name: _value(arguments[1], each, f"{path}.{name:.{_LONGEST_SHOWN}}", bounds) for name, each in value.items()
        }
    if isinstance(annotation, type) and issubclass(annotation, Line):
        return _line(annotation, value, path)
    return value if annotation is Any else _scalar(annotation, value, path, bounds)


def _items(origin: type, arguments: tuple[Any, ...], value: Any, path: str, bounds: Bounds) -> Any:
    """A list with a least length, or a tuple of the declared one."""
    least = bounds.get("min_length", 0) if origin is list else len(arguments)
    most = bounds.get("max_length", math.inf) if origin is list else len(arguments)
    if not isinstance(value, list) or not least <= len(value) <= most:
        several = f" of {least} to {most} values" if least < most < math.inf else f" of {least} values"
        raise _wrong(path, value, f"a list{several if most < math.inf else ' that is not empty' if least else ''}")
    kinds = repeat(arguments[0], len(value)) if origin is list else arguments
    places = enumerate(zip(kinds, value, strict=True))
    return origin(_value(kind, each, f"{path}[{place}]", _NO_BOUNDS) for place, (kind, each) in places)


def _scalar(kind: type, value: Any, path: str, bounds: Bounds) -> Any:
    if kind in (int, float):
        return number(kind, value, path, bounds)
    if not isinstance(value, kind):
        raise _wrong(path, value, {str: "text", bool: "true or false"}[kind])
    if isinstance(value, str) and len(value) < bounds.get("min_length", 0):
        raise _wrong(path, value, "text that is not empty")
    return value


def within(annotation: Any, value: object, name: str) -> float:
    """The value, a number that is what is declared of `name`, also by functions (`Check`). Raises `ValueError`."""
    found = cast(float, _value(annotation, value, name, _NO_BOUNDS))
    for check in annotation.__metadata__:
        if isinstance(check, Check):
            check.function(found)
    return found


def number(kind: type, value: Any, path: str, bounds: Bounds) -> Any:
    """A number from `ge` to `le`: a float, or with `kind` int a whole one.

    Raises:
        NotDeclared: it is none.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _is_within(value, bounds) or (kind is int and value != int(value)):
        what = "a whole number " if kind is int else "" if is_number else "a number "
        raise _wrong(path, value, f"{what}from {bounds['ge']:g} to {bounds['le']:g}")
    return kind(value)


def _is_within(value: float, bounds: Bounds) -> bool:
    """NaN is not. Integers are compared as they are: they may be beyond all floats."""
    return bool(bounds.get("ge", -math.inf) <= value <= bounds.get("le", math.inf))


def _wrong(path: str, value: object, allowed: str) -> NotDeclared:
    return NotDeclared(f"{path} is {shown(value)}, but must be {allowed}")


def shown(value: Any) -> str:
    """A value in an error: short, whatever it is."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        try:
            return f"{value:g}"
        except OverflowError:
            return "a number with more than 300 digits"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}...")
    return f"a list of {len(value)}" if isinstance(value, list) else "an object"
