"""Figures that are printed as tables: a line of names, and lines of figures below.

epoch     train_loss  valid_loss  accuracy  time          fastai, and many others
0         2.301000    2.200000    0.150000  00:12

|    loss                 | 0.025        |               one figure a line

99 2134.5                                               a count and the loss, without names
"""

from __future__ import annotations

import re
from typing import NamedTuple

from optimus_workers.script.channels.names import Meaning, meaning, normal

MAX_COLUMNS = 64
_BETWEEN = re.compile(r"\||\s{2,}|\t")
_CELL = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)(?:/(\d{1,15}))?", re.IGNORECASE)
_NAME = re.compile(r"#|[A-Za-z][\w./() -]{0,39}")
_ROW = re.compile(r"\|\s*([A-Za-z][\w/ -]{0,39}?)\s*\|\s*([-+]?\d[\d.eE+-]*)\s*\|")
_BARE = re.compile(r"(\d{1,9})[\s,:]+([-+]?\d+\.\d+(?:[eE][-+]?\d+)?)")
_SHORT = {"#": "step", "e": "epoch"}
"""Columns of spaCy."""
_LOSSES = (Meaning.LOSS, Meaning.KIND_OF_LOSS, Meaning.EVALUATED_LOSS)
_ALIKE = 2
"""So many equal distances between counts without names make them counts."""


class Figure(NamedTuple):
    """A figure of a table, with the normal name of its column."""

    name: str
    text: str
    total: str | None = None
    """Of a count: its end, as in `3/10`."""


class Tables:
    """The tables of one output. `feed` takes every line, blanks as they were printed."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._count, self._distance, self._alike = 0, 0, 0

    def feed(self, line: str) -> list[Figure]:
        """What the line says as a part of a table."""
        line = line.strip()
        if row := _ROW.fullmatch(line):
            name = normal(row[1])
            return [] if name == "iterations" else [Figure(name, row[2])]  # stable-baselines: not of the optimizer
        if bare := _BARE.fullmatch(line):
            return self._bare(bare[1], bare[2])
        cells = [cell.strip() for cell in _BETWEEN.split(line, MAX_COLUMNS) if cell.strip()]
        if len(cells) < 3:
            return []
        if all(_NAME.fullmatch(cell) for cell in cells):
            self._header(cells)
            return []
        return self._figures(cells)

    def _header(self, cells: list[str]) -> None:
        names = [normal(cell) for cell in cells]
        names = [_SHORT.get(name, name) for name in names]
        meanings = {meaning(name) for name in names}
        if meanings & set(_LOSSES) and meanings & {Meaning.EPOCH, Meaning.STEP}:
            self._names = names

    def _figures(self, cells: list[str]) -> list[Figure]:
        names = self._names
        if not names or len(cells) < len(names) or not _CELL.fullmatch(cells[0]):
            return []
        found = [(name, _CELL.fullmatch(cell)) for name, cell in zip(names, cells, strict=False)]
        return [Figure(name, match[1], match[2]) for name, match in found if match is not None]

    def _bare(self, count: str, figure: str) -> list[Figure]:
        """`99 2134.5`, where the counts of lines are at equal distances."""
        distance = int(count) - self._count
        self._alike = self._alike + 1 if distance == self._distance > 0 else 0
        self._count, self._distance = int(count), distance
        return [Figure("step", count), Figure("loss", figure)] if self._alike >= _ALIKE else []
