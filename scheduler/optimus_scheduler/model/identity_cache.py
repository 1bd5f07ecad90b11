"""A cache of functions of a tuple, keyed by the tuple's identity.

A cluster has tens of thousands of nodes, and several steps of a round pass the same tuple of them. Comparing or hashing
it by value takes longer than most of the functions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_ENTRIES = 4
"""Entries of a cache: a cluster has one tuple of nodes at a time."""


class ByIdentity:
    """A key that compares and hashes a tuple by identity, and keeps it alive so that its id is not reused."""

    __slots__ = ("value",)

    def __init__(self, value: tuple[object, ...]) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value


def cached_by_identity(function: Callable[[Sequence[_Item]], _Result]) -> Callable[[Sequence[_Item]], _Result]:
    """Decorates a function of immutable items; caches results for the last tuples, not for other sequences."""

    @lru_cache(maxsize=_ENTRIES)
    def cached(same: ByIdentity) -> _Result:
        return function(same.value)  # type: ignore[arg-type]

    @wraps(function)
    def call(items: Sequence[_Item]) -> _Result:
        return cached(ByIdentity(items)) if isinstance(items, tuple) else function(items)

    return call
