"""The record of who did what: a row of the database and a line in the log for each call that changed something.

The row is written in the transaction of the change (`RecordingRepository`), so what it is to say has to be known
by then: endpoints put it into the `Audit` of their request before they write, or inside of their transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from optimus_service.api.access.callers import Caller
from optimus_service.store.records import AuditRecord

_log = structlog.get_logger("optimus.audit")


@dataclass(slots=True)
class Audit:
    """What is recorded of one request, should it succeed. The endpoint adds what only it knows."""

    clock: Callable[[], float]
    caller: Caller
    action: str
    target: str | None
    project: str | None
    request_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    """No secrets: whoever oversees the cluster may read it."""
    each: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)
    """Of a request about many jobs: id, project and data of each that the transaction in progress is about."""
    is_due: bool = True
    """Whether it is recorded as well if nothing was written beside."""

    def made(self, made_id: str) -> None:
        """The request makes this: what it is about, or comes from what it is about."""
        if self.target is not None:
            self.data["made"] = made_id
        else:
            self.target = made_id

    def entries(self, *, is_first: bool) -> list[AuditRecord]:
        """The rows of a transaction, with what is known by now: one of each job, or one of the request's first."""
        if self.each:
            return [self._entry(job_id, project, self.data | data) for job_id, project, data in self.each]
        return [self._entry(self.target, self.project, self.data)] if is_first else []

    def _entry(self, target: str | None, project: str | None, data: dict[str, Any]) -> AuditRecord:
        return AuditRecord(
            at=self.clock(),
            who=self.caller.name,
            token_id=self.caller.token_id,
            action=self.action,
            target=target,
            project=project,
            data=data,
            request_id=self.request_id,
        )

    def note_stored(self, entries: Sequence[AuditRecord]) -> None:
        """Write the lines into the log."""
        self.each = []
        for entry in entries:
            _log.info(
                "audit",
                who=entry.who,
                token_id=entry.token_id,
                action=entry.action,
                target=entry.target,
                project=entry.project,
                data=entry.data,
                request_id=entry.request_id,
            )
