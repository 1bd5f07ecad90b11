"""What the coordinator says, in order; and at once, that it wants something else than the step at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from optimus_workers.wire.control import CoordinatorLost, Delivered
from optimus_workers.wire.errors import ConnectionOver
from optimus_workers.wire.messages import Exit, Halt


class Interrupted(ConnectionOver):
    """The coordinator wants something else than the step at hand."""


class Inbox:
    """Messages from the control connection's reading thread to the main thread."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """`interrupt`: ends a transfer of the main thread; called on the reading thread."""
        self._interrupt = interrupt
        self._messages: SimpleQueue[Delivered] = SimpleQueue()
        self._n_interruptions = 0  # delivered and not yet taken
        self._counting = threading.Lock()

    def deliver(self, message: Delivered) -> None:
        """On the control connection's reading thread."""
        if isinstance(message, Halt | Exit | CoordinatorLost):
            with self._counting:
                self._n_interruptions += 1
            self._interrupt()
        self._messages.put(message)

    def take(self, timeout: float | None = None) -> Delivered:
        """The next message. Raises `queue.Empty` when there is none within `timeout` seconds."""
        message = self._messages.get(timeout=timeout)
        if isinstance(message, Halt | Exit | CoordinatorLost):
            with self._counting:
                self._n_interruptions -= 1
        return message

    @property
    def is_interrupted(self) -> bool:
        return self._n_interruptions > 0

    def check(self) -> None:
        """Raises `Interrupted` when the step at hand is not wanted any more."""
        if self.is_interrupted:
            raise Interrupted("the coordinator wants something else")
