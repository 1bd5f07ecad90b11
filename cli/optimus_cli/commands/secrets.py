"""`optimus secrets`: the keys that variables of jobs are encrypted with in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimus_cli import output
from optimus_cli.configuration import load_settings, service_is_missing
from optimus_cli.errors import BadInput, CliError
from optimus_cli.options import AsJson, Command, Group

if TYPE_CHECKING:
    from optimus_service.store.repository import Repository

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Encryption of jobs' variables in the database (OPTIMUS_ENCRYPTION_KEYS)."
)

DatabaseUrl = Annotated[
    str | None, typer.Option(help="Default: OPTIMUS_DATABASE_URL, else SQLite in the data directory.")
]
DataDirectory = Annotated[Path | None, typer.Option(help="Default: OPTIMUS_DATA_DIRECTORY, else ./optimus-data.")]


@app.command(cls=Command)
def key() -> None:
    """Print a new key, at random. Keep it as safe as the database, and elsewhere."""
    try:
        from optimus_service.store.database.sealing import new_key
    except ImportError as error:
        raise service_is_missing(error) from error
    output.print_text(new_key())


@app.command(cls=Command)
def rotate(database_url: DatabaseUrl = None, data_directory: DataDirectory = None, as_json: AsJson = False) -> None:
    """Encrypt all variables with the first key: those in clear, and those of older keys. The service may run on."""
    _rewrite(database_url, data_directory, lambda found: found.variables.rewrite(), as_json=as_json)


@app.command(cls=Command)
def decrypt(database_url: DatabaseUrl = None, data_directory: DataDirectory = None, as_json: AsJson = False) -> None:
    """Store all variables in clear, for a release that cannot read others. The service must not run meanwhile."""
    _rewrite(database_url, data_directory, lambda found: found.variables.rewrite(clear=True), as_json=as_json)


def _rewrite(
    database_url: str | None, data_directory: Path | None, do: Callable[[Repository], int], *, as_json: bool
) -> None:
    with _repository(database_url, data_directory) as repository:
        changed, found = do(repository), repository.variables.stored()
    if as_json:
        counted = {"encrypted": found.sealed, "clear": found.clear, "unreadable": found.unreadable}
        output.print_json({"changed": changed, **counted})
    else:
        output.print_text(f"{changed} jobs changed; {found.sealed} are encrypted, {found.clear} in clear")
    if found.unreadable:
        raise CliError(f"{found.unreadable} jobs are encrypted with a key that OPTIMUS_ENCRYPTION_KEYS does not have")


@contextmanager
def _repository(database_url: str | None, data_directory: Path | None) -> Iterator[Repository]:
    settings = load_settings({"database_url": database_url, "data_directory": data_directory})
    from optimus_service.store import errors
    from optimus_service.store.database.engine import create_engine_from_url
    from optimus_service.store.database.sealing import Keys
    from optimus_service.store.repository import Repository

    if not settings.keys:
        raise BadInput("OPTIMUS_ENCRYPTION_KEYS is not set: `optimus secrets key` makes a key")
    if settings.database_url is None and not (settings.data_directory / "optimus.db").exists():
        raise BadInput(f"there is no database in {settings.data_directory}")
    repository = None
    try:
        repository = Repository(create_engine_from_url(settings.url, keys=Keys(settings.keys)))
        yield repository
    except errors.InvalidDatabaseUrl as error:
        raise BadInput(str(error)) from error
    except errors.StoreError as error:
        raise CliError(f"The database cannot be used: {error}") from error
    finally:
        if repository is not None:
            repository.close()
