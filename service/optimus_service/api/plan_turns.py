"""How many may ask at a time what would happen: each answer plans and looks ahead twice, and nobody else has to wait
for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from optimus_service.api.http.problems import unavailable

_AT_ONCE = 2
"""Answers take turns, but reading and wording do not."""
_MOST = 16
"""That wait or are answered; who comes then is told to come again. Answers are made to the end, whether anybody still
waits for them or not."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class PlanTurns:
    """To be used in the event loop."""

    def __init__(self) -> None:
        self._n = 0
        self._turns: CapacityLimiter | None = None

    @contextmanager
    def place(self) -> Iterator[None]:
        """For one that asks. Raises `Problem` (503): there are too many."""
        if self._n >= _MOST:
            raise unavailable("too many ask at this moment what would happen: try again in a moment")
        self._n += 1
        try:
            yield
        finally:
            self._n -= 1

    async def in_turn(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """The answer of `call`, in a thread. Raises `Problem` (503): there are too many."""
        with self.place():
            if self._turns is None:
                self._turns = CapacityLimiter(_AT_ONCE)
            return await to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._turns)
