"""What records of all subjects are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

Document = dict[str, Any]
Item = TypeVar("Item")
UNSAVED: Final = 0
"""The id of a record that is not stored yet; stored ones count from 1."""
NameMatch = Literal["part", "any", "exact", "start", "one", "id"]
"""How a listing compares names: a part in any case (any: of the name, the id, the owner, the project or a label), the
whole name, or the beginning of the name or the id."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some items of a listing, newest first."""

    items: tuple[Item, ...]
    next_cursor: str | None
    """Opaque; asks for the items after these. None: there are no more."""
