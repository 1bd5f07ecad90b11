"""An earlier release of the service beside the present one, in one process: an upgrade with both at work.

::

    git archive ─▶ the release's packages ─▶ modules of their own ─┬─▶ its replica, its store, its API
                                                                   └─ values of the cluster are made anew at the border

Both have modules of the same names. Whose `sys.modules` shows is changed with whoever runs (`Kernel.use`).
"""

from __future__ import annotations

import atexit
import dataclasses
import enum
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_world import kernel as shared
from optimus_world.database import Database
from optimus_world.kernel import Kernel

_PACKAGES = ("contract", "models", "scheduler", "service", "workers")
_OURS = tuple(f"optimus_{name}" for name in (*_PACKAGES, "world"))


BEFORE_0025 = "59f3a84520a1b00773268ef5cd4de41d5765d4f0"
"""The newest revision whose database is at 0024. There is no release with a tag yet."""


class NoHistory(Exception):
    """The release cannot be had from the repository."""


class Release:
    """The modules of a release, loaded beside those of the present one; `with` it, they show."""

    def __init__(self, directory: Path) -> None:
        """`directory`: its packages."""
        present = _ours()
        for name in present:
            del sys.modules[name]
        sys.modules["optimus_world.kernel"] = shared
        paths = [str(directory / name) for name in _PACKAGES] + [str(directory)]
        sys.path[:0] = paths
        try:
            self.replica: Any = import_module("optimus_world.replica")
            self.engine: Any = import_module("optimus_service.store.engine")
            self._repository: Any = import_module("optimus_service.store.repository").Repository
            self.metrics: Any = import_module("optimus_service.metrics.registry").Metrics
            self._base: Any = import_module("optimus_service.clusters.base")
            loop: Any = import_module("optimus_service.loop.loop")
            loop._FOLLOW_SECONDS, loop.WATCH_SECONDS = 15.0, 5.0  # as `sealed` has them
            for path in sorted((directory / "service").rglob("*.py")):  # what is imported later otherwise
                if path.stem != "__main__":
                    import_module(".".join(path.relative_to(directory / "service").with_suffix("").parts))
        finally:
            del sys.path[: len(paths)]
            self._own = _ours()
            self._present = present
            self.__exit__()

    def __enter__(self) -> None:
        # What the present release has imported since.
        later = self._own.keys() - self._present.keys()
        self._present |= {name: sys.modules[name] for name in later if name in sys.modules}
        sys.modules.update(self._own)

    def __exit__(self, *_error: object) -> None:
        for name in self._own.keys() - self._present.keys():
            sys.modules.pop(name, None)
        sys.modules.update(self._present)

    def open(self, database: Database) -> Callable[..., Any]:
        """Opens the database as a process of this release does."""
        return partial(database.open, engines=self.engine, kind=self._repository)

    def own(self, value: Any) -> Any:
        """A value of the present release as one of this release: what that does not know of it is left out."""
        return _made(value, self._own)

    def present(self, value: Any) -> Any:
        """... and the other way round."""
        return _made(value, self._present)

    def unavailable(self, error: ClusterUnavailable) -> Exception:
        found: Exception = self._base.ClusterUnavailable(str(error))
        return found


class ClusterOfRelease:
    """A replica's access to the cluster, in the values of its release."""

    def __init__(self, cluster: Cluster, release: Release, kernel: Kernel) -> None:
        self._cluster, self._release, self._kernel = cluster, release, kernel

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._cluster, name)

        def called(*arguments: Any, **named: Any) -> Any:
            given = [self._release.present(each) for each in arguments]
            self._kernel.use(None)
            try:
                answer = call(*given, **named)
            except ClusterUnavailable as error:
                raise self._release.unavailable(error) from error
            finally:
                self._kernel.use(self._release)
            return self._release.own(answer)

        return called


def _ours() -> dict[str, ModuleType]:
    """All modules of Optimus that show."""
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in _OURS}


def _made(value: Any, modules: dict[str, ModuleType]) -> Any:
    if isinstance(value, dict):
        return {_made(key, modules): _made(each, modules) for key, each in value.items()}
    kind = type(value)
    if kind.__module__.partition(".")[0] not in _OURS:
        if isinstance(value, tuple | list | set | frozenset):
            return kind(_made(each, modules) for each in value)
        return value
    twin = getattr(modules[kind.__module__], kind.__name__)
    if isinstance(value, enum.Enum):
        return twin(value.value)
    if isinstance(value, tuple):
        return twin(*(_made(each, modules) for each in value))
    known = {each.name for each in dataclasses.fields(twin)}
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return twin(**{name: _made(each, modules) for name, each in fields.items() if name in known})


@cache
def load(revision: str) -> Release:
    """The release at this revision of the repository. Its packages stay in a temporary directory until the process
    ends.

    Raises:
        NoHistory: the repository does not have it.
    """
    command = ["git", "archive", revision, *_PACKAGES, "migrations", "optimus_world"]
    root = Path(__file__).parents[1]
    try:
        packed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(f"revision {revision} is not in a git repository at {root}") from error
    directory = tempfile.TemporaryDirectory(prefix="optimus-release-")
    atexit.register(directory.cleanup)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, that of Debian, has none
        archive.extractall(directory.name)  # noqa: S202 - git has just written it
    return Release(Path(directory.name))
