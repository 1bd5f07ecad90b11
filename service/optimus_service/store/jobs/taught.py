"""Which task a finished run teaches of, beside its document: the runs of a task are found by it."""

from __future__ import annotations

import hashlib
from typing import Final

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from optimus_scheduler.forecast.priors import LEAST_LOSSES
from optimus_service.store.database.tables import Base
from optimus_service.store.records import Document

_RUNS: Final = Base.metadata.tables["finished_runs"]
_UNNAMED: Final = select(_RUNS.c.id, _RUNS.c.document).where(_RUNS.c.task.is_(None))
_LONGEST: Final = 1000
"""Bytes of a key; PostgreSQL indexes some 2,700."""
_NAME: Final = update(_RUNS).where(_RUNS.c.id == bindparam("of")).values(task=bindparam("is"))


def task_key(task: str) -> str:
    """What stands for a task in the column: itself, or a hash of what no index of PostgreSQL or no text of it takes."""
    encoded = task.encode(errors="surrogatepass")
    is_plain = len(encoded) <= _LONGEST and b"\0" not in encoded and encoded == task.encode(errors="replace")
    return task if is_plain else f"sha256 {hashlib.sha256(encoded).hexdigest()}"


def task_taught(document: Document) -> str:
    """The key of what a run with this document (`optimus_service.observe.finished_runs`) teaches of; empty: nothing."""
    teaches = document.get("speeds") or document.get("silent") or len(document.get("losses", ())) >= LEAST_LOSSES
    return task_key(str(document.get("task", ""))) if teaches else ""


def name_tasks(session: Session, limit: int) -> int:
    """Write what the runs teach of that a replica of an earlier release stored, of `limit` at most; of how many."""
    unnamed = session.execute(_UNNAMED.limit(limit)).all()
    if unnamed:
        session.connection().execute(_NAME, [{"of": row.id, "is": task_taught(row.document)} for row in unnamed])
    return len(unnamed)
