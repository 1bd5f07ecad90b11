"""How tables are laid out: columns that fit the terminal, and lists of facts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

COLUMN_GAP = 3
LEAST_WORDS = 12
"""Characters for columns of several words: enough to break between words, and not in a figure."""
FOLDED = frozenset({"time left", "submitted", "cause", "message"})
"""Columns of several words. All others are kept on one line: half a number is no number."""
LEAST_WIDTHS = dict.fromkeys((*FOLDED, "stood still", "lost"), LEAST_WORDS) | {"why": 20, "to what": 24, "projects": 8}


def columns_table(
    *columns: str, right: Iterable[str] = (), folded: Iterable[str] = (), widths: Mapping[str, int] | None = None
) -> Table:
    """`folded` columns may break into lines beside those that always may; what is too wide in others is cut with a "…".

    `widths`: that there is room for (`fitting`): columns of several words have these.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    aligned, broken = set(right), FOLDED.union(folded)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in aligned else "left"
        least = LEAST_WIDTHS.get(column)
        wide = None if widths is None or least is None else widths[column]
        is_whole = column not in broken
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if is_whole else "fold"
        table.add_column(column, justify=justify, overflow=overflow, no_wrap=is_whole, min_width=least, width=wide)
    return table


def facts_table(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """A two-column list of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def fitting(rows: Sequence[Mapping[str, RenderableType]], left_out: Sequence[str], width: int) -> dict[str, int]:
    """The columns that a terminal of `width` characters has room for, with their widths; those of `left_out` go first,
    in its order."""
    whole = {name: max(_width(name), *(_width(row[name]) for row in rows)) for name in rows[0]}
    widths = whole | {name: min(whole[name], least) for name, least in LEAST_WIDTHS.items() if name in whole}
    going = [name for name in left_out if name in widths]
    while going and in_all(widths) > width:
        del widths[going.pop(0)]
    for name in widths:
        widths[name] = min(whole[name], widths[name] + max(width - in_all(widths), 0))
    return widths


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A table with fewer columns where the terminal is narrow; `left_out`, `right`, `folded`: as of `fitting` and
    `columns_table`."""

    rows: Sequence[Mapping[str, RenderableType]]
    left_out: Sequence[str]
    right: Sequence[str] = ()
    folded: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = fitting(self.rows, self.left_out, options.max_width)
        table = columns_table(*widths, right=self.right, folded=self.folded, widths=widths)
        for row in self.rows:
            table.add_row(*(row[name] for name in widths))
        yield table


def _width(cell: RenderableType) -> int:
    """Characters of its longest line."""
    lines = (cell.plain if isinstance(cell, Text) else str(cell)).splitlines()
    return max((cell_len(line) for line in lines), default=0)


def in_all(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1) + 2
