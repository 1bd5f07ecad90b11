"""`optimus db`: the database's schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from optimus_cli import output
from optimus_cli.configuration import load_settings, service_is_missing
from optimus_cli.errors import BadInput, CliError
from optimus_cli.options import AsJson, Command, Group

app = typer.Typer(cls=Group, no_args_is_help=True, help="Create and update the database's tables.")

DatabaseUrl = Annotated[
    str | None, typer.Option(help="Default: OPTIMUS_DATABASE_URL, else SQLite in the data directory.")
]
DataDirectory = Annotated[Path | None, typer.Option(help="Default: OPTIMUS_DATA_DIRECTORY, else ./optimus-data.")]
Answer = TypeVar("Answer")


@app.command(cls=Command)
def upgrade(database_url: DatabaseUrl = None, data_directory: DataDirectory = None, as_json: AsJson = False) -> None:
    """Bring the database to the newest revision; does nothing when it is there."""
    settings = load_settings({"database_url": database_url, "data_directory": data_directory})
    if settings.database_url is None:
        settings.data_directory.mkdir(parents=True, exist_ok=True)
    engine = _store_engine()
    _mapped(lambda: engine.upgrade(settings.url))
    _report(_mapped(lambda: engine.current_revision(settings.url)), engine.head_revision(), as_json=as_json)


@app.command(cls=Command)
def current(database_url: DatabaseUrl = None, data_directory: DataDirectory = None, as_json: AsJson = False) -> None:
    """Print the revision that the database has, and the newest one. Exit code 1 if they differ."""
    settings = load_settings({"database_url": database_url, "data_directory": data_directory})
    engine = _store_engine()
    missing = settings.database_url is None and not (settings.data_directory / "optimus.db").exists()
    # Looking must not create an empty database file.
    revision = None if missing else _mapped(lambda: engine.current_revision(settings.url))
    _report(revision, engine.head_revision(), as_json=as_json)


def _store_engine() -> Any:
    try:
        from optimus_service.store import engine
    except ImportError as error:
        raise service_is_missing(error) from error
    return engine


def _mapped(action: Callable[[], Answer]) -> Answer:
    from optimus_service.store import errors

    try:
        return action()
    except errors.InvalidDatabaseUrl as error:
        raise BadInput(str(error)) from error
    except errors.StoreError as error:
        raise CliError(f"The database cannot be used: {error}") from error


def _report(revision: str | None, head: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"revision": revision, "newest": head})
    else:
        output.print_text(f"revision {revision or 'none (no tables yet)'}, newest {head}")
    if revision != head:
        raise typer.Exit(1)
