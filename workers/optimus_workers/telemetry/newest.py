"""What is told to the service in the background, where only the newest counts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from optimus_workers.errors import ServiceProblem

log = logging.getLogger(__name__)

Told = TypeVar("Told")


class Newest(Generic[Told]):
    """Tells values of one kind, each in a thread of its own: of those made one after the other the last arrives last,
    and one that another overtakes is not told. `tell` is for one thread at a time."""

    def __init__(self, put: Callable[[Told], None], name: str) -> None:
        """`put`: a call of `ServiceClient`, which may raise `ServiceProblem`; `name`: of the threads, and what the
        values are, in the log."""
        self._put = put
        self._name = name
        self._turn = threading.Lock()
        self._last: threading.Thread | None = None
        self._newest: Told | None = None
        """What the service is to know; None: nothing, or it did not take that ..."""
        self._told: Told | None = None
        """... and what it has taken."""

    def tell(self, value: Told) -> None:
        """Tell it, if the last one was another or was not taken. Returns at once."""
        if value == self._newest:
            return
        self._newest = value
        self._last = threading.Thread(target=self._tell_newest, name=self._name, daemon=True)
        self._last.start()

    def again(self) -> None:
        """Tell what was told once more: the service was away, and its database may be that of a backup now. Returns at
        once; for any thread."""
        threading.Thread(target=self._tell_again, name=self._name, daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Until the newest value is told or could not be, for so long at most."""
        if self._last is not None:
            self._last.join(seconds)

    def _tell_again(self) -> None:
        with self._turn:
            self._told = None
        self._tell_newest()

    def _tell_newest(self) -> None:
        with self._turn:
            newest = self._newest
            if newest is None or newest == self._told:
                return
            try:
                self._put(newest)
            except ServiceProblem as error:
                log.warning("%s could not be reported: %s", self._name, error)
                if self._newest is newest:
                    self._newest = None  # again, when it is told again
            else:
                self._told = newest
