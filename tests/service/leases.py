"""Leases by the database's clock, which no test can set: their ends are moved instead."""

from __future__ import annotations

from sqlalchemy import delete, update

from optimus_service.store.database.tables import LeaseRow
from optimus_service.store.repository import Repository


def move_ends(repository: Repository, seconds: float) -> None:
    """Each lease ends so much later than it would have; negative: earlier."""
    with repository._engine.begin() as connection:
        connection.execute(update(LeaseRow).values(expires_at=LeaseRow.expires_at + seconds))


def run_out(repository: Repository) -> None:
    """Each lease is over, as if its holder had not renewed it."""
    move_ends(repository, -3600.0)


def forget(repository: Repository) -> None:
    """As somebody does who deletes rows by hand."""
    with repository._engine.begin() as connection:
        connection.execute(delete(LeaseRow))
