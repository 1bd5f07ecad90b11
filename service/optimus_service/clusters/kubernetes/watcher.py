"""Keeps one mirror up to date: list once, then watch; resume where a watch ended, list again where that is too old.

::

    list ──▶ watch ──▶ events… ──▶ the server ends it (every few minutes) ──▶ watch from the last version
      ▲        │
      │        ├── 410 Gone: the last version is too old ──▶ list
      │        └── the connection broke ──▶ wait a little, then watch from the last version
      └──────────── never listed successfully yet ◀── wait a little
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway, Stream
from optimus_service.clusters.kubernetes.mirror import Mirror


class Event(Protocol):
    """What is used of `threading.Event`."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


def start_daemon(name: str, body: Callable[[], None]) -> None:
    """Run `body` in a thread that keeps no process alive."""
    threading.Thread(target=body, name=name, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads, and the time by which they wait: the real ones, or those of simulated faults (docs/faults.md)."""

    monotonic: Callable[[], float] = time.monotonic
    event: Callable[[], Event] = threading.Event
    start: Callable[[str, Callable[[], None]], None] = start_daemon


_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_SHORTEST_WATCH_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Watcher:
    """A thread that watches one collection. `problem` and `wait_until_listed` may be asked from any thread."""

    def __init__(
        self,
        gateway: Gateway,
        path: str,
        query: Mapping[str, str],
        mirror: Mirror[Any],
        watch_seconds: int,
        threads: Threads = Threads(),
    ) -> None:
        self._gateway = gateway
        self._threads = threads
        self._path = path
        self._query = query
        self._mirror = mirror
        self._watch_seconds = watch_seconds
        self._version: str | None = None
        self._listed = threads.event()
        self._stopping = threads.event()
        self._stream: Stream | None = None
        self._failures = 0
        self.problem: str | None = "not asked yet"
        """Why the mirror may be out of date; None while the watch is open."""

    def start(self) -> None:
        self._threads.start(f"watch {self._path}", self._run)

    def close(self) -> None:
        self._stopping.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    def wait_until_listed(self, timeout_seconds: float) -> bool:
        return self._listed.wait(timeout_seconds)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except ClusterUnavailable as error:
                self._failed(str(error))
            except ApiRefused as error:
                if error.is_gone:
                    self._version = None  # too old to be resumed: list again
                else:
                    self._failed(f"{self._path}: {error}")
            except Exception as error:  # noqa: BLE001 - a dead thread would leave the mirror out of date for ever
                if not self._stopping.is_set():  # a connection that is closed under a reader fails in many ways
                    _log.exception("a watch failed", path=self._path)
                self._version = None
                self._failed(f"{self._path}: {type(error).__name__}: {error}")

    def _turn(self) -> None:
        if self._version is None:
            self._list()
        assert self._version is not None, "listing gives a version"
        self._stream = self._gateway.watch(self._path, self._query, self._version, self._watch_seconds)
        self._succeeded()
        opened_at = self._threads.monotonic()
        for kind, found in self._stream:
            self._version = found["metadata"]["resourceVersion"]
            match kind:
                case "ADDED" | "MODIFIED":
                    self._mirror.put(found)
                case "DELETED":
                    self._mirror.remove(found)
        if self._threads.monotonic() - opened_at < _SHORTEST_WATCH_SECONDS:
            self._stopping.wait(_FIRST_PAUSE_SECONDS)  # a server that ends watches at once is not asked all the time

    def _list(self) -> None:
        asked_at = self._threads.monotonic()
        # Condensed page by page: a large cluster's pods are not held twice.
        self._mirror.replace(self._objects(), asked_at)
        if not self._listed.is_set():
            self.problem = None  # what was listed is up to date; the watch is opened next
        self._listed.set()

    def _objects(self) -> Iterator[dict[str, Any]]:
        version = None
        for page in self._gateway.pages(self._path, self._query):
            version = page["metadata"]["resourceVersion"]
            yield from page.get("items") or []
        self._version = version

    def _succeeded(self) -> None:
        if self.problem is not None:
            _log.info("watching", path=self._path)
        self.problem = None
        self._failures = 0

    def _failed(self, problem: str) -> None:
        if self._stopping.is_set():
            return
        if self.problem is None:
            _log.warning("the watch broke off", path=self._path, problem=problem)
        self.problem = problem
        pause = min(_FIRST_PAUSE_SECONDS * 2**self._failures, _LONGEST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 16)
        # Replicas must not come back all at the same instant.
        self._stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
