"""Threads, and the time by which they wait: what the simulation of faults (docs/faults.md) gives its own of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


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
    """The default is the real ones."""

    monotonic: Callable[[], float] = time.monotonic
    event: Callable[[], Event] = threading.Event
    start: Callable[[str, Callable[[], None]], None] = start_daemon
