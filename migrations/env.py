"""Runs the migrations, in one transaction: all of them or none.

The service and the tests call `optimus_service.store.database.engine.upgrade`, which brings its engine along.
Developers call `alembic` itself (see alembic.ini): it works on the database of the settings
(`OPTIMUS_DATABASE_URL`), or on `alembic -x url=… COMMAND`.
"""

from __future__ import annotations

from typing import Literal

from alembic import context
from sqlalchemy import Connection, Engine, TypeDecorator, text

from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, writing
from optimus_service.store.database.tables import Base

_TURN = 0x6F7074696D7573  # "optimus" in ASCII: our key among the advisory locks of the database
_TURN_TIMEOUT = "120s"
"""How long a replica waits while another one migrates."""
_LOCK_TIMEOUT = "4s"
"""A migration that cannot have a table soon gives up: while it waits, every query on that table queues behind it."""
_STATEMENT_TIMEOUT = "60s"
"""A statement that takes longer belongs into several smaller ones: writers wait for it."""


def _run() -> None:
    engine: Engine | None = context.config.attributes.get("engine")
    if engine is not None:
        _migrate(engine)
        return
    engine = writing(create_engine_from_url(context.get_x_argument(as_dictionary=True).get("url") or Settings().url))
    try:
        _migrate(engine)
    finally:
        engine.dispose()


def _migrate(engine: Engine) -> None:
    with engine.begin() as connection:
        _take_turn(connection)
        # The transaction is the caller's on both databases; SQLite can roll back changes of tables, too.
        context.configure(
            connection=connection, target_metadata=Base.metadata, transactional_ddl=True, render_item=_render_item
        )
        with context.begin_transaction():
            context.run_migrations()


def _render_item(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Migrations name what a column is in the database; our types for it may change, migrations may not."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{type(item.impl_instance).__name__}()"
    return False


def _take_turn(connection: Connection) -> None:
    """Wait until no other replica migrates; the lock is given back with the end of the transaction.

    On SQLite the transaction began as the only writing one (see `writing`), which does the same.
    """
    if connection.dialect.name != "postgresql":
        return
    _set_local(connection, "statement_timeout", _TURN_TIMEOUT)
    _set_local(connection, "lock_timeout", _TURN_TIMEOUT)
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _TURN})
    _set_local(connection, "lock_timeout", _LOCK_TIMEOUT)
    _set_local(connection, "statement_timeout", _STATEMENT_TIMEOUT)


def _set_local(connection: Connection, name: str, value: str) -> None:
    connection.execute(text("SELECT set_config(:name, :value, true)"), {"name": name, "value": value})


if context.is_offline_mode():
    raise SystemExit("migrations need the database: there is no --sql mode")
_run()
