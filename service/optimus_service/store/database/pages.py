"""Keyset pagination: a cursor says after which row to go on, so pages neither skip nor repeat when rows are added."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from optimus_service.store.errors import InvalidCursor
from optimus_service.store.records import Page

DEFAULT_PAGE = 50
MAX_PAGE = 1000
"""Items of one page at most: bounds the memory of an answer."""
Row = TypeVar("Row")
Item = TypeVar("Item")
_LARGEST = 2**63 - 1
"""What an integer column holds."""
Key = tuple[float | int | str, ...]
"""The values by which a listing is ordered; unique in it."""


def encode_cursor(listing: str, key: Key) -> str:
    """An opaque, URL-safe name for the place after `key` in `listing`."""
    return base64.urlsafe_b64encode(json.dumps([listing, *key]).encode()).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str, types: tuple[type, ...]) -> Key:
    """The key in a cursor of `listing`.

    Raises:
        InvalidCursor: it was not made by `encode_cursor` for this listing.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        name, *key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidCursor("this is not a cursor; use next_cursor of the page before") from error
    if name != listing or [type(part) for part in key] != list(types) or not all(map(_fits_column, key)):
        raise InvalidCursor(f"this cursor belongs to another listing than {listing}")
    return tuple(key)


def _fits_column(part: float | int | str) -> bool:
    """Whether every database can compare a column with it. No row has a key that is not finite, or text that is not."""
    if isinstance(part, str):
        return "\0" not in part and not any("\ud800" <= character <= "\udfff" for character in part)
    return math.isfinite(part) if isinstance(part, float) else abs(part) <= _LARGEST


def make_page(
    listing: str, rows: Sequence[Row], limit: int, key: Callable[[Row], Key], item: Callable[[Row], Item]
) -> Page[Item]:
    """A page of at most `limit` of `rows`, which were selected with one more to see whether there are more."""
    shown = rows[:limit]
    more = len(rows) > limit
    return Page(tuple(item(row) for row in shown), encode_cursor(listing, key(shown[-1])) if more else None)


def check_limit(limit: int) -> None:
    """Raises ValueError for a page that is too large, or has nothing."""
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit must be from 1 to {MAX_PAGE}, not {limit}")
