"""Patience with what was refused: each task's next try comes later than the last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from optimus_scheduler.model import TaskKey, Trouble
from optimus_service.clusters.base import TaskRefused

_FIRST_SECONDS = 5.0
_LONGEST_SECONDS = 300.0
_REMEMBERED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    trouble: Trouble
    n_times: int
    again_at: float


class Backoff:
    """Refusals by task. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refusals: dict[TaskKey, _Refusal] = {}

    def check(self, key: TaskKey) -> None:
        """Raises `TaskRefused` as the last time, while it is too early for another try."""
        refusal = self._refusals.get(key)
        if refusal is not None and self._clock() < refusal.again_at:
            raise TaskRefused(refusal.trouble)

    def refused(self, key: TaskKey, trouble: Trouble) -> None:
        now = self._clock()
        with self._lock:
            before = self._refusals.get(key)
            n_times = before.n_times + 1 if before is not None else 1
            pause = min(_FIRST_SECONDS * 2.0 ** (n_times - 1), _LONGEST_SECONDS)
            self._refusals = {
                known: each for known, each in self._refusals.items() if now - each.again_at < _REMEMBERED_SECONDS
            } | {key: _Refusal(trouble, n_times, now + pause)}

    def accepted(self, key: TaskKey) -> None:
        with self._lock:
            self._refusals.pop(key, None)
