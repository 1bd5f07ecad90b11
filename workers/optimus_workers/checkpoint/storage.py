"""Where checkpoints are kept: a directory, or anything that fsspec has a file system for (object stores by URL).

A file appears whole or not at all in a directory and in object stores; where that is not so (some of fsspec's file
systems), sizes and checksums in the manifest, which is written last, tell. Needs neither torch nor numpy.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"})
"""File systems of fsspec without folders, whose paths begin with a bucket that must exist."""


class StorageAway(OSError):
    """The storage did not do what it was asked for; whether what is in it is damaged is not known."""


class StorageUnusable(StorageAway):
    """No file system is known for this URL: asking again is of no use."""


class Storage(Protocol):
    """Files by name, without folders. Everything raises `OSError`: `FileNotFoundError` where that is the reason, and
    `StorageAway` where a network may be."""

    def names(self) -> list[str]:
        """The names of all files; none where nothing was ever written."""

    def size(self, name: str) -> int:
        """The size of a file in bytes."""

    def read(self, name: str, first: int = 0, end: int | None = None) -> bytes:
        """Bytes [first, end) of a file; to its end where `end` is None or beyond."""

    def write(self, name: str, write_to: Callable[[Path], None]) -> None:
        """Make a file of what `write_to` writes to the path that it is given."""

    def remove(self, name: str) -> None:
        """Remove a file; no error if it is not there."""

    def location(self, name: str) -> str:
        """For people: the path or the URL of a file."""


class LocalStorage:
    """A directory; what was written survives a power cut."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        return [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []

    def size(self, name: str) -> int:
        return self._path(name).stat().st_size

    def read(self, name: str, first: int = 0, end: int | None = None) -> bytes:
        with self._path(name).open("rb") as file:
            file.seek(first)
            return file.read() if end is None else file.read(max(0, end - first))

    def write(self, name: str, write_to: Callable[[Path], None]) -> None:
        path = self._path(name)
        with _temporary(self.directory, name) as temporary:
            write_to(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        _sync_directory(self.directory)

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def location(self, name: str) -> str:
        return str(self._path(name))

    def _path(self, name: str) -> Path:
        return self.directory / Path(name).name  # names come from manifests: none leads elsewhere


class UrlStorage:
    """Below a URL. What is uploaded is written to `scratch`, a local directory, first: it may be larger than memory.

    Credentials come from the environment, as each file system of fsspec documents it.
    """

    def __init__(self, url: str, scratch: Path) -> None:
        self._url = url.rstrip("/")
        self._scratch = scratch

    def names(self) -> list[str]:
        def listed() -> list[str]:
            self._files.invalidate_cache()  # other processes write here too
            try:
                return [posixpath.basename(str(path)) for path in self._files.ls(self._root, detail=False)]
            except FileNotFoundError:
                self._check_bucket()
                return []

        return _reached(listed)

    def _check_bucket(self) -> None:
        """A bucket that is not there is not an empty one: a mistyped name, or it was taken away."""
        bucket = self._root.partition("/")[0]
        if self._has_buckets and not self._files.exists(bucket):
            raise StorageAway(f"{self._url}: there is no bucket {bucket}")

    def size(self, name: str) -> int:
        def size() -> int:
            self._files.invalidate_cache()
            return int(self._files.size(self._path(name)))

        return _reached(size)

    def read(self, name: str, first: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= first:
            return b""  # HTTP has no empty range: asked for one, stores send everything

        def got() -> bytes:
            try:
                return bytes(self._files.cat_file(self._path(name), start=first, end=end))
            except OSError as error:
                if error.errno == errno.EINVAL and first >= self.size(name):
                    return b""  # nor one beyond the end, which they refuse
                raise

        return _reached(got)

    def write(self, name: str, write_to: Callable[[Path], None]) -> None:
        with _temporary(self._scratch, name) as temporary:
            write_to(temporary)
            _reached(lambda: self._upload(temporary, self._path(name)))

    def _upload(self, temporary: Path, path: str) -> None:
        if not self._has_buckets:  # there it could only make a bucket, of whatever name
            self._files.makedirs(self._root, exist_ok=True)
        self._files.put_file(str(temporary), path)

    def remove(self, name: str) -> None:
        def removed() -> None:
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

        _reached(removed)

    def location(self, name: str) -> str:
        return f"{self._url}/{posixpath.basename(name)}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{posixpath.basename(name)}"

    @property
    def _has_buckets(self) -> bool:
        protocol = self._files.protocol
        return not OBJECT_STORES.isdisjoint([protocol] if isinstance(protocol, str) else protocol)

    @property
    def _root(self) -> str:
        return self._opened[1].rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system and the path in it."""
        try:
            from fsspec.core import url_to_fs

            files, root = url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise StorageUnusable(f"{self._url}: {error}") from error
        return files, str(root)


def open_storage(url: str | None, job_id: str, job_directory: Path) -> Storage:
    """Where the checkpoints of a job are: in its directory, or below `url` under its name."""
    directory = checkpoint_directory(job_directory)
    return LocalStorage(directory) if url is None else UrlStorage(f"{url.rstrip('/')}/{job_id}", directory)


def checkpoint_directory(job_directory: Path) -> Path:
    return job_directory / "checkpoints"


def _reached(call: Callable[[], T]) -> T:
    try:
        return call()
    except (FileNotFoundError, StorageAway):
        raise
    except Exception as error:
        raise StorageAway(f"{type(error).__name__}: {error}") from error


@contextmanager
def _temporary(directory: Path, name: str) -> Iterator[Path]:
    """A path to write to, gone afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{Path(name).name}.{os.getpid()}.tmp"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Put the names in a directory on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
