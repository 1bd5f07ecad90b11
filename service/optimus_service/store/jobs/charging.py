"""What jobs were given, added up by month, project, owner and GPU type, so that nobody has to add up a million jobs.

A job is charged whenever what it should have changes: for the time since the last change, in the same transaction.
What it has had since then is added by whoever asks (`usage.of_month`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session, object_session

from optimus_service.store.database.dialects import insert_for
from optimus_service.store.database.tables import JobRow, UsageRow
from optimus_service.store.records import asked_by

_CHARGES = "optimus usage"
"""Of a session: what its transaction adds."""
Key = tuple[str, str, str, str]
"""Month, project, owner and GPU type; "" is none."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Seconds times what was held."""

    worker_seconds: float = 0.0
    core_seconds: float = 0.0
    gpu_seconds: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, seconds: float) -> Amount:
        return Amount(*(each * seconds for each in astuple(self)))


def charge(row: JobRow, now: float) -> None:
    """Count what the job has been given since `wanted_at`, which is `now` from here on. The row is locked.

    To be called before what the job is given changes."""
    session = object_session(row)
    assert session is not None, "the row of a transaction"
    charges: dict[Key, Amount] = session.info.setdefault(_CHARGES, {})
    for month, seconds in months(row.wanted_at, now):
        add(charges, row, month, seconds)
    row.wanted_at = now


def settle(session: Session) -> None:
    """Store what the transaction has charged, as its last statements and in one order: two transactions that add to
    the same rows then wait for each other, and for nothing else."""
    charges: dict[Key, Amount] = session.info.pop(_CHARGES, {})
    for key in sorted(charges):
        amount = charges[key]
        values = dict(zip(("month", "project", "owner", "gpu_type"), key, strict=True))
        added = {name: getattr(amount, name) for name in Amount.__dataclass_fields__}
        sums = {name: getattr(UsageRow, name) + value for name, value in added.items()}
        statement = insert_for(session, UsageRow).values(**values, **added)
        session.execute(statement.on_conflict_do_update(index_elements=list(values), set_=sums))


def month_of(moment: float) -> str:
    """2026-11, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m")


def months(since: float | None, until: float) -> Iterator[tuple[str, float]]:
    """The time between two moments by month, in seconds. A clock that was set back gives nothing."""
    while since is not None and since < until:
        start = datetime.fromtimestamp(since, UTC)
        years, month = divmod(start.month, 12)
        following = datetime(start.year + years, month + 1, 1, tzinfo=UTC).timestamp()
        end = min(until, following)
        yield start.strftime("%Y-%m"), end - since
        since = end


def add(sums: dict[Key, Amount], row: JobRow, month: str, seconds: float) -> None:
    """Add what the job holds now, times these seconds."""
    allocated = _allocated(row)
    if allocated != Amount():
        key = month, row.project, row.owner or "", row.wanted_gpu_type or ""
        sums[key] = sums.get(key, Amount()) + allocated * seconds


def _allocated(row: JobRow) -> Amount:
    """What the job has been given: per second. A job that runs elsewhere holds nothing of the cluster."""
    n_workers, n_servers = row.wanted_workers, row.wanted_servers
    if row.heard_at is not None or not (n_workers or n_servers):
        return Amount()
    asked = asked_by(row.spec)
    worker, server = asked.workers.resources, asked.servers.resources
    return Amount(
        n_workers, n_workers * worker.cpu + n_servers * server.cpu, n_workers * worker.gpus + n_servers * server.gpus
    )
