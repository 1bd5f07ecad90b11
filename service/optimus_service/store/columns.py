"""Column types that hold the same values on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import math
from typing import Any

from sqlalchemy import BigInteger, Dialect, Integer, Text
from sqlalchemy.types import TypeDecorator

Number = BigInteger()
"""64-bit integers: steps and byte counts outgrow 32 bits."""
Id = BigInteger().with_variant(Integer(), "sqlite")
"""Keys that the database gives out; SQLite does so only for a column that is exactly INTEGER."""


class Words(TypeDecorator[str]):
    """Text. A NUL character, which PostgreSQL refuses, becomes U+FFFD (the replacement character); half of a surrogate
    pair, which UTF-8 cannot say and Python makes of a file name's odd bytes, becomes a question mark."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Json(TypeDecorator[Any]):
    """A document as JSON text, read and written as a whole.

    Not the database's own JSON: PostgreSQL's refuses NaN, infinities and NUL characters, all of which are legal
    in what jobs tell. Python's JSON says them and reads them back.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def split_float(value: float | None) -> tuple[float | None, str | None]:
    """A float for two columns, value and kind: SQLite would turn NaN into NULL.

    The kind is NULL (no value), "finite", or, with a NULL value, "nan", "inf" or "-inf".
    """
    if value is None:
        return None, None
    return (value, "finite") if math.isfinite(value) else (None, str(float(value)))


def join_float(value: float | None, kind: str | None) -> float | None:
    """The inverse of `split_float`."""
    if kind is None:
        return None
    return value if kind == "finite" else float(kind)
