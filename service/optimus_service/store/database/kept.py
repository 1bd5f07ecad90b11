"""Values that were made of rows, kept for as long as the rows are the same.

The rows of active jobs are read at each look: whatever changed is seen, whoever changed it. Making values of them costs
several times as much as reading them, and from look to look most are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Dialect, Row, Text, type_coerce

from optimus_service.store.database.sealing import Specification
from optimus_service.store.database.tables import Json
from optimus_service.store.records import DecisionRecord, JobRecord, WantedRecord

Value = TypeVar("Value")
AnyRow = Row[*tuple[Any, ...]]


class KeptValues(Generic[Value]):
    """By job, with the hash of its row. Threads may share it: an entry is replaced as a whole, and fits its own row."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, Value]] = {}

    def of(
        self,
        job_id: str,
        columns: Sequence[Any],
        row: AnyRow,
        make: Callable[[AnyRow, Value | None], Value],
        *,
        is_kept: bool,
    ) -> Value:
        """The very value of before where the columns are the same; else what `make` makes of the row and that value.

        `columns`: all of the row that `make` looks at. `is_kept`: keep what is made.
        """
        before, mark = self._found.get(job_id), hash(tuple(columns))
        if before is not None and before[0] == mark:
            return before[1]
        made = make(row, None if before is None else before[1])
        if is_kept:
            self._found[job_id] = mark, made
        return made

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Forget those of all other jobs."""
        for job_id in list(self._found):
            if job_id not in job_ids:
                self._found.pop(job_id, None)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._found


@dataclass(frozen=True, slots=True)
class Kept:
    """What a repository keeps, of active jobs only."""

    jobs: KeptValues[JobRecord] = field(default_factory=KeptValues)
    decisions: KeptValues[DecisionRecord] = field(default_factory=KeptValues)
    """With what is expected of each job."""
    wanted: KeptValues[WantedRecord] = field(default_factory=KeptValues)

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Forget all other jobs."""
        for each in (self.jobs, self.decisions, self.wanted):
            each.keep_only(job_ids)


def as_stored(columns: Iterable[ColumnElement[Any]]) -> tuple[ColumnElement[Any], ...]:
    """The columns for a statement whose rows are given to `read`: documents as the text that is stored."""
    return tuple(type_coerce(each, Text).label(each.key) if _is_document(each) else each for each in columns)


def read(row: AnyRow, columns: Iterable[ColumnElement[Any]], dialect: Dialect) -> Any:
    """The row as if it had been selected by `columns` themselves."""
    documents = {
        each.key: each.type.process_result_value(getattr(row, each.key), dialect)
        for each in columns
        if each.key is not None and isinstance(each.type, Specification | Json)
    }
    return SimpleNamespace(**{**row._mapping, **documents})


def _is_document(column: ColumnElement[Any]) -> bool:
    return isinstance(column.type, Specification | Json)
