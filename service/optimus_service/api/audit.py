"""The record of who did what: a row of the database and a line in the log for each call that changed something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from optimus_service.api.callers import Caller
from optimus_service.store.records import AuditRecord
from optimus_service.store.repository import Repository

_log = structlog.get_logger("optimus.audit")


@dataclass(slots=True)
class Audit:
    """What is recorded of one request, should it succeed. The endpoint adds what only it knows."""

    repository: Repository
    clock: Callable[[], float]
    caller: Caller
    action: str
    target: str | None
    project: str | None
    data: dict[str, Any] = field(default_factory=dict)
    """No secrets: whoever oversees the cluster may read it."""

    def record(self, headers: Mapping[bytes, bytes], request_id: str | None) -> None:
        """Store it, and write it into the log. `headers` of the answer name what was made.

        Raises:
            DatabaseNotAvailable: it is not stored.
        """
        made = headers.get(b"location")
        if made is not None:
            made_id = made.decode("ascii").rpartition("/")[2]
            self.data |= {} if self.target is None else {"made": made_id}
            self.target = self.target or made_id
        entry = AuditRecord(
            at=self.clock(),
            who=self.caller.name,
            token_id=self.caller.token_id,
            action=self.action,
            target=self.target,
            project=self.project,
            data=self.data,
            request_id=request_id,
        )
        self.repository.add_audit(entry)
        _log.info(
            "audit",
            who=entry.who,
            token_id=entry.token_id,
            action=entry.action,
            target=entry.target,
            project=entry.project,
            data=entry.data,
            request_id=request_id,
        )
