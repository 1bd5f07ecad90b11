"""What keeps the service from starting is told in one message: what, where, and what to do."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from optimus_service import server
from optimus_service.server import run
from optimus_service.settings import Settings
from optimus_service.store.database import engine
from optimus_service.store.errors import DatabaseNotAvailable


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """`run` is for a process of its own: what it sets is put back."""
    umask = os.umask(0)
    os.umask(umask)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    os.umask(umask)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory in which a service has been."""
    directory = tmp_path / "data"
    directory.mkdir()
    engine.upgrade(f"sqlite:///{directory / 'optimus.db'}")
    (directory / "secret.key").write_text(64 * "a")
    return directory


def refusal(directory: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The message; nothing else than lines of the log may come with it."""
    with pytest.raises(SystemExit) as end:
        run(Settings(data_directory=directory, port=0))
    printed = capfd.readouterr()
    assert "Traceback" not in printed.out + printed.err
    message = str(end.value)
    assert message.startswith("The service cannot start: ")
    assert "\n" not in message
    assert not (directory / "service.json").is_file()
    return message


def _directory_for(name: str) -> Callable[[Path], None]:
    def replace(data: Path) -> None:
        (data / name).unlink(missing_ok=True)
        (data / name).mkdir()

    return replace


def _truncated(data: Path) -> None:
    os.truncate(data / "optimus.db", 20_000)


def _overwritten(data: Path) -> None:
    (data / "optimus.db").write_bytes(1000 * b"no database ")


def _short_secret(data: Path) -> None:
    (data / "secret.key").write_text("short")


def _file_for_local(data: Path) -> None:
    (data / "local").touch()


def _newer(data: Path) -> None:
    with closing(sqlite3.connect(data / "optimus.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


@pytest.mark.parametrize(
    ("spoil", "named", "why"),
    [
        (_directory_for("lock"), "lock", "Is a directory"),
        (_directory_for("secret.key"), "secret.key", "Is a directory"),
        (_directory_for("service.json"), "service.json", "Is a directory"),
        (_directory_for("optimus.db"), "optimus.db", "it must be a file"),
        (_file_for_local, "local", "Not a directory"),
        (_truncated, "optimus.db", "bring it back from a backup"),
        (_overwritten, "optimus.db", "bring it back from a backup"),
        (_short_secret, "secret.key", "bring it back from a backup"),
        (_newer, "revision 9999", "Run that version"),
    ],
)
def test_what_is_wrong_with_the_data_directory_is_named(
    data: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None], named: str, why: str
) -> None:
    spoil(data)
    message = refusal(data, capfd)
    assert named in message
    assert why in message


def test_a_database_that_another_process_has_locked_is_named(
    data: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_BUSY_SECONDS", 0)
    with closing(sqlite3.connect(data / "optimus.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        message = refusal(data, capfd)
    assert "optimus.db" in message
    assert "another process has it open" in message


@pytest.mark.parametrize(
    ("code", "cure"), [(sqlite3.SQLITE_IOERR, "full or fails"), (sqlite3.SQLITE_READONLY, "must be writable")]
)
def test_what_the_disk_does_is_told_with_its_cure(
    data: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int, cure: str
) -> None:
    def failing(_url: str) -> None:
        raise DatabaseNotAvailable("the disk does not what it should", sqlite_code=code)

    monkeypatch.setattr(server, "upgrade", failing)
    assert cure in refusal(data, capfd)


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").touch()
    assert f"{tmp_path / 'data'} cannot be used" in refusal(tmp_path / "data", capfd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a directory with these options."""
    place = tmp_path / "disk"
    place.mkdir()

    def mounted(options: str) -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True, capture_output=True)
        return place

    yield mounted
    subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize(
    ("options", "named", "why"),
    [
        ("size=64k", "optimus.db", "make room on its disk"),
        ("size=64k,ro", "lock", "Read-only file system"),
        ("size=1m,nr_inodes=5", "disk", "No space left on device"),
    ],
)
def test_a_disk_that_takes_nothing_is_told(
    small_disk: Callable[[str], Path], capfd: pytest.CaptureFixture[str], options: str, named: str, why: str
) -> None:
    message = refusal(small_disk(options), capfd)
    assert named in message
    assert why in message
