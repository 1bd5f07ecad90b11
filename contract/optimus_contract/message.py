"""Messages: the dataclasses that cross a border between processes, and what their fields may hold.

A message is a plain dataclass of the standard library, so that a parameter server or the command line reads one without
loading a library. What is allowed stands in the annotations:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TaskDemand(Message):
        min: Annotated[int, About(ge=1, le=1024)] = 1

The service hands the same classes to pydantic and FastAPI, which find the rules through the hooks below and make the
checks of requests, the OpenAPI document and the TrainingJob's schema from them. `optimus_contract.codec` reads and
writes messages without those checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

Schema = dict[str, Any]
"""A schema of pydantic's core, or a JSON schema. Both are plain dictionaries."""


class Message:
    """Base of all messages. In requests unknown fields are errors, and values have the type that is named.

    Strict: `"3"` and `true` are no numbers. Read leniently, `max: true` would silently be a job of one worker.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "strict": True}
    NULL_IS_REFUSED: ClassVar[str] = ""
    """Why a request may not say null where a field's None means that it was left out; empty: it may."""

    def check(self) -> None:
        """Raise `ValueError` if fields that are allowed one by one do not go together. Called for requests only."""

    @classmethod
    def prepared(cls, value: object) -> object:
        """The request's value before its fields are looked at."""
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Schema:
        found: Schema = handler(source)
        # A strict dataclass would want an instance; its fields stay strict.
        resolved = handler.resolve_ref_schema(found)
        resolved["strict"] = False
        if cls.NULL_IS_REFUSED:
            for each in resolved["schema"]["fields"]:
                each["schema"] = _without_null(each["schema"], cls.NULL_IS_REFUSED)
        if cls.prepared.__func__ is not Message.prepared.__func__:  # type: ignore[attr-defined]
            found = {"type": "function-before", "function": _plain(cls.prepared), "schema": found}
        if cls.check is not Message.check:
            found = {"type": "function-after", "function": _plain(_checked), "schema": found}
        return found


def _checked(message: Message) -> Message:
    message.check()
    return message


def _without_null(schema: Schema, why: str) -> Schema:
    """The schema of a field with an error of its own for null, which it does not offer."""
    if schema["type"] == "nullable":

        def refuse(value: object) -> object:
            if value is None:
                raise ValueError(why)
            return value

        return {"type": "function-before", "function": _plain(refuse), "schema": schema["schema"]}
    is_wrapped = schema["type"] == "default" or schema["type"].startswith("function-")
    return {**schema, "schema": _without_null(schema["schema"], why)} if is_wrapped else schema


def _plain(function: Callable[..., object]) -> Schema:
    return {"type": "no-info", "function": function}


class FieldError(ValueError):
    """One field does not go with the others."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field


class About:
    """What a field is for, and what it may hold: the annotation's metadata.

    Bounds: `ge`, `gt`, `le`, `lt` of a number, `min_length`, `max_length` of text, a list or an object, `pattern` of
    text (a regular expression). Numbers must be finite unless `finite` is False.
    """

    def __init__(
        self,
        description: str = "",
        *,
        examples: tuple[object, ...] = (),
        json_schema: Mapping[str, object] | None = None,
        form: str = "",
        **bounds: float | str,
    ) -> None:
        """`json_schema`: words for the schema of what cannot be said by bounds. `form`: the pattern in words; without
        it the description says it."""
        self.description = description
        self.form = form or description
        self.examples = examples
        self.bounds = bounds
        self._json_schema = dict(json_schema or {})

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        found: Schema = handler(source)
        return _bounded(found, self.bounds) if self.bounds else found

    def __get_pydantic_json_schema__(self, core_schema: Schema, handler: Any) -> Schema:
        found = dict(handler(core_schema))
        if self.description:
            found["description"] = self.description
        if self.examples:
            found["examples"] = list(self.examples)
        return found | self._json_schema


def _bounded(schema: Schema, bounds: Mapping[str, object]) -> Schema:
    """The bounds where they belong: inside of "or null" and of conversions, whose other way keeps its own."""
    if "schema" not in schema:
        return {**schema, **bounds}
    inner = _bounded(schema["schema"], bounds)
    found = {**schema, "schema": inner}
    if "json_schema_input_schema" in schema:
        also = schema["json_schema_input_schema"]["choices"][1:]
        found["json_schema_input_schema"] = {"type": "union", "choices": [inner, *also]}
    return found


class Finite:
    """Metadata of a number that is neither NaN nor infinite."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return _bounded(handler(source), {"allow_inf_nan": False})


FINITE = Finite()


class Check:
    """Metadata of a field that a function checks: it returns the value, or raises `ValueError`."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.function = function

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return {"type": "function-after", "function": _plain(self.function), "schema": handler(source)}


class Convert:
    """Metadata of a field that a function makes of what was sent, before it is checked; it may raise `ValueError`."""

    converts = True

    def __init__(self, function: Callable[[Any], object], also: Schema | None = None) -> None:
        """`also`: pydantic's schema of another way to write the field."""
        self.function = function
        self._also = also

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        found: Schema = handler(source)
        before: Schema = {"type": "function-before", "function": _plain(self.function), "schema": found}
        if self._also is not None:
            before["json_schema_input_schema"] = {"type": "union", "choices": [found, self._also]}
        return before
