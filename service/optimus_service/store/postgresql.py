"""Connections to PostgreSQL that never wait for ever for a frozen server or a network that drops packets."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

_KEEPALIVES: Final = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Parameters of libpq. A lost peer is noticed after a minute on an idle connection (in seconds), and 30 s after data
was sent to it (in milliseconds). The defaults of the kernel are two hours and a quarter of an hour."""
_CHECK_SECONDS: Final = 0.5
"""How often a wait looks at the time."""

_Result = TypeVar("_Result")


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time; the connection was closed."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection on which no single operation (a statement, a commit) waits longer than `answer_seconds`.

    The server ends long statements itself (`statement_timeout`), and the kernel connections to machines that are gone.
    This is for what is left: a machine that answers, on which PostgreSQL does not.
    """

    answer_seconds: float = 0.0

    def wait(self, gen: PQGen[_Result], interval: float = _CHECK_SECONDS, *rest: Any, **others: Any) -> _Result:
        """Run one operation.

        Raises:
            NoAnswer: it took longer than `answer_seconds`.
        """
        bounded = self._bounded(gen) if self.answer_seconds > 0 else gen
        return super().wait(bounded, interval, *rest, **others)

    def _bounded(self, gen: PQGen[_Result]) -> Generator[Any, Any, _Result]:
        deadline = time.monotonic() + self.answer_seconds
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and time.monotonic() > deadline:  # psycopg sends "not ready" every `interval` seconds
                    self.pgconn.finish()
                    raise NoAnswer(f"the server has not answered for {self.answer_seconds:.0f} seconds")
                state = gen.send(ready)
        except StopIteration as done:
            result: _Result = done.value
            return result


def connect(answer_seconds: float, *arguments: Any, **options: Any) -> BoundedConnection:
    """Open a connection; `arguments` and `options` are those of `psycopg.connect`."""
    connection = BoundedConnection.connect(*arguments, **{**_KEEPALIVES, **options})
    connection.answer_seconds = answer_seconds
    return connection
