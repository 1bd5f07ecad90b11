"""Can tasks load the code that a job names? Asked of the cluster, with a short memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

Check = Callable[[str, str | None], str | None]

_REMEMBERED_SECONDS = 60.0
"""Code that could be loaded a minute ago most likely still can, and a task that cannot load it says so itself."""
_MAX_REMEMBERED = 256
_AT_ONCE = 4
"""Submissions that are looked at together. A check starts an interpreter and may load large libraries; and those that
wait must not take the threads that all other calls need."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Answer:
    """One question to the cluster; whoever comes while it is being asked waits for the answer."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    loadable_at: float | None = None


class TaskChecks:
    """Asks the cluster whether tasks can load some code, once for many equal questions. Thread-safe.

    Only good news is remembered: who repairs his code and submits again must not be told of old errors.
    """

    def __init__(self, check: Check, clock: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[str, str | None], _Answer] = OrderedDict()
        self._turns = CapacityLimiter(_AT_ONCE)

    async def in_turn(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run something that checks tasks in a thread, a few at a time; the others wait without a thread."""
        return await to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._turns)

    def why_not_loadable(self, import_path: str, working_directory: str | None) -> str | None:
        """Why not, None when tasks can load it or nobody can tell."""
        answer = self._answer((import_path, working_directory))
        with answer.turn:
            if answer.loadable_at is not None and self._clock() - answer.loadable_at < _REMEMBERED_SECONDS:
                return None
            why_not = self._check(import_path, working_directory)
            answer.loadable_at = self._clock() if why_not is None else None
            return why_not

    def _answer(self, question: tuple[str, str | None]) -> _Answer:
        with self._lock:
            answer = self._answers.setdefault(question, _Answer())
            self._answers.move_to_end(question)
            if len(self._answers) > _MAX_REMEMBERED:
                self._answers.popitem(last=False)
            return answer
