"""The directory in which one service keeps its things: database (SQLite), secret, job directories, local tasks."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from optimus_service.process.steady_clock import ClockFile


class CannotStart(Exception):
    """The service cannot start; the message tells its operator why and what to do."""


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Say `what` could not be done, to which file, and why, where the operating system refuses.

    Raises:
        CannotStart: an `OSError` was raised in the block.
    """
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        raise CannotStart(f"{what}: {where}{error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A data directory that belongs to this process."""

    path: Path

    @classmethod
    @contextmanager
    def locked(cls, path: Path) -> Iterator[DataDirectory]:
        """Make the directory (mode 0700) if need be, and keep other services out of it. A dead one keeps nobody out.

        Raises:
            CannotStart: it cannot be made, or another service uses it.
        """
        descriptor = _open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise CannotStart(f"another service is running on the data directory {path}{_address(path)}") from error
        try:
            yield cls(path)
        finally:
            os.close(descriptor)  # which gives up the lock

    def write_address(self, url: str, version: str) -> None:
        """Write where the service listens, in `service.json`: all at once.

        Raises:
            CannotStart: it cannot be written.
        """
        text = json.dumps({"url": url, "pid": os.getpid(), "version": version}, indent=1) + "\n"
        draft = self.path / f".service.json.{os.getpid()}"
        with refusing("the address of the service cannot be written"):
            try:
                draft.write_text(text)
                draft.replace(self._address_file)
            finally:
                draft.unlink(missing_ok=True)

    def remove_address(self) -> None:
        """The service is gone. Where the file cannot be removed, its process id says that it is."""
        with suppress(OSError):
            self._address_file.unlink()

    @property
    def clock_file(self) -> ClockFile:
        """What the service's clock goes on with after a restart."""
        return ClockFile.of(self.path / "clock.json")

    @property
    def _address_file(self) -> Path:
        return self.path / "service.json"


def _address(directory: Path) -> str:
    """Where the service of this directory listens, as it wrote; empty while it starts."""
    try:
        written = json.loads((directory / "service.json").read_text())
        return f": {written['url']} (process {written['pid']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _open_lock(directory: Path) -> int:
    with refusing(f"the data directory {directory} cannot be used"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
