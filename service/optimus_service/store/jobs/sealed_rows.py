"""Statements about variables of jobs that are stored already: how many are sealed, and sealing them anew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, select, text, type_coerce
from sqlalchemy.orm import Session

from optimus_service.store.database.sealing import SEALED, as_text, keys_of
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import JobRow

_SEALED_TEXT = f'%"{SEALED}":"%'
_CLEAR_TEXT = '%"environment":{"%'
"""Neither can stand inside of a string of JSON, where quotation marks have backslashes."""
_BATCH = 500
"""Rows of one transaction at most."""


class Variables(Subject):
    """Variables of stored jobs: how many are sealed, and sealing them anew."""

    def stored(self) -> Stored:
        """How many jobs have variables, sealed and in clear."""
        with self._read() as session:
            keys = keys_of(session.get_bind().dialect)
            sealed = unreadable = clear = 0
            after: str | None = ""
            while after is not None:
                rows = session.execute(_with_variables(after)).all()
                for _, content in rows:
                    document = json.loads(content)
                    if not isinstance(document, dict):
                        continue
                    clear += bool(document.get("environment"))
                    sealed += SEALED in document
                    unreadable += SEALED in document and (keys is None or SEALED in keys.open(document))
                after = rows[-1][0] if len(rows) == _BATCH else None
            return Stored(sealed, unreadable, clear)

    def rewrite(self, *, clear: bool = False) -> int:
        """Seal all variables with the engine's first key; or store all that can be opened in clear.

        In some transactions, so that others need not wait long. Again is harmless.

        Returns:
            The number of jobs whose row was changed.
        """
        after: str | None = ""
        changed = 0
        while after is not None:
            with self._write() as session:
                after, n = rewrite(session, after, clear=clear)
            changed += n
        return changed


@dataclass(frozen=True, slots=True)
class Stored:
    """What is found in the database."""

    sealed: int
    """Jobs with sealed variables."""
    unreadable: int
    """Of these, jobs that no key opens."""
    clear: int
    """Jobs whose variables are in clear."""


def rewrite(session: Session, after: str, *, clear: bool) -> tuple[str | None, int]:
    """Seal variables with the first key, those sealed with an older one again; or (`clear`) store them in clear.

    Of the jobs whose id comes after `after`, so many at a time that nobody waits for long.

    Returns:
        The last id that was looked at (None: there were no more), and how many jobs were changed.
    """
    keys = keys_of(session.get_bind().dialect)
    assert keys is not None, "without a key nothing can be sealed or opened"
    rows = session.execute(_with_variables(after)).all()
    changed = 0
    for job_id, old in rows:
        document = json.loads(old)
        if not isinstance(document, dict):
            continue
        if not clear and keys.is_current(document):
            continue
        opened = keys.open(document)
        new = as_text(opened if clear else keys.seal(opened))
        if new != old:
            changed += _replace(session, job_id, old, new)
    return (rows[-1][0] if len(rows) == _BATCH else None), changed


def _replace(session: Session, job_id: str, old: str, new: str) -> int:
    """A writer who came in between has sealed it already, with the first key."""
    values = {"id": job_id, "old": old, "new": new}
    statement = text("UPDATE jobs SET spec = :new WHERE id = :id AND spec = :old RETURNING id")
    return len(session.execute(statement, values).all())


def _with_variables(after: str) -> Any:
    content = type_coerce(JobRow.spec, Text())
    is_one = content.like(_SEALED_TEXT) | content.like(_CLEAR_TEXT)
    return select(JobRow.id, content).where(JobRow.id > after, is_one).order_by(JobRow.id).limit(_BATCH)
