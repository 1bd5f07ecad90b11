"""Files of traces, and the rows of those that are tables: what is wrong with one is said in the same way for all."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from optimus_contract.limits import MAX_COUNT
from optimus_simulator.declared import number
from optimus_simulator.errors import BadTrace

_LONGEST_TEXT = 1000


@contextmanager
def reading(path: Path, what: str = "") -> Iterator[None]:
    """What makes a file unreadable is `BadTrace`, which names it. `what` it should be: `not a trace of PCS (...)`."""
    try:
        yield
    except (OSError, EOFError, zlib.error, csv.Error, ValueError, LookupError, ArithmeticError, TypeError) as error:
        is_of_this_file = isinstance(error, OSError) and str(error.filename) == str(path)
        why = getattr(error, "strerror", None) if is_of_this_file else None
        why = why or str(error) or type(error).__name__
        if what:
            raise BadTrace(f"{path}: not {what} ({why})") from error
        raise BadTrace(f"{path}{', ' if why.startswith('line ') else ': '}{why}") from error


@contextmanager
def opened(path: Path, *, is_packed: bool | None = None) -> Iterator[TextIO]:
    """The text of a file; `is_packed` by gzip: None: as its name ends."""
    if path.suffix == ".gz" if is_packed is None else is_packed:
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as packed:
            yield cast(TextIO, packed)
    else:
        with path.open(encoding="utf-8-sig", newline="") as text:
            yield text


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. Its methods raise `ValueError`, which names the line, the column and what is allowed."""

    line: int
    fields: Mapping[str, str | None]

    def text(self, *names: str) -> str:
        """Of the first of these columns that there is."""
        return self._found(names)[1]

    def _found(self, names: tuple[str, ...]) -> tuple[str, str]:
        """The column that there is, and its text."""
        name = next((name for name in names if name in self.fields), names[-1])
        found = self.fields.get(name)
        if not isinstance(found, str) or not found.strip():
            raise ValueError(f"line {self.line}: {name} is missing")
        if len(found) > _LONGEST_TEXT:
            raise ValueError(f"line {self.line}: {name} has {len(found)} characters, but may have {_LONGEST_TEXT}")
        return name, found.strip()

    def number(self, name: str, least: float, most: float, *others: str) -> float:
        """From `least` to `most`. `others`: names of the column that are looked for first."""
        return self._number(float, name, least, most, others)

    def whole(self, name: str, least: float, most: float = MAX_COUNT, *others: str) -> int:
        """A whole number; `others`: names of the column that are looked for first."""
        return cast(int, self._number(int, name, least, most, others))

    def _number(self, kind: type, name: str, least: float, most: float, others: tuple[str, ...]) -> float:
        name, text = self._found((*others, name))
        try:
            value: object = float(text)
        except ValueError:
            value = text
        bounds = {"ge": least, "le": most}
        return cast(float, number(kind, value, f"line {self.line}: {name}", bounds))


def rows(text: Iterable[str], *, lines_before: int = 0) -> Iterator[Row]:
    """The rows of a table whose first line names the columns."""
    reader = csv.DictReader(text)
    for fields in reader:
        fields.pop(None, None)  # what is beyond the columns
        yield Row(reader.line_num + lines_before, fields)
