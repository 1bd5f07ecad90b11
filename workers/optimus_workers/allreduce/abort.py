"""Ends operations of a process group that gloo does not end, though all connections of the group are hung up.

gloo reports a connection's error to the operations that wait, but not to two kinds: those of a message that is half
received, and those of a message still to be sent. Such an operation waits for ever: for instance one that passes a
member's state on to a member that is stopped (gloo, `transport/tcp/pair.cc`, `signalException`). So nothing here waits
for gloo itself, but for a future beside it, which can be given an outcome from outside.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import torch

from optimus_workers.errors import ConnectionOver

log = logging.getLogger(__name__)

Future = torch.futures.Future[Any]


class AbortableOperations:
    """The operations of one group that are going on. Used by several threads."""

    def __init__(self, devices: Sequence[torch.device | str | int] = ()) -> None:
        """`devices`: GPUs whose streams the operations write on."""
        self._devices = list(devices)
        self._changed = threading.Condition()  # guards all below; notified when an operation ends
        self._waiting: dict[int, Future] = {}
        self._patience: float | None = None
        self._watches: list[threading.Thread] = []
        self.is_stuck = False
        """Whether an operation was abandoned and goes on: its group must not be taken apart."""

    def guard(self, operation: Future) -> Future:
        """A future with the outcome of `operation`, or with an error if that does not come in time."""
        outcome: Future = torch.futures.Future(devices=self._devices)
        with self._changed:
            self._waiting[id(outcome)] = outcome
            if self._patience is not None:  # begun after the end: its connections may not have noticed yet
                self._watch(self._patience)
        operation.add_done_callback(lambda done: self._end(outcome, _result(done)))
        return outcome.then(_unpacked)

    def abort(self, after_seconds: float) -> None:
        """Abandon operations that do not end by themselves within this time. Returns at once; once for each group."""
        with self._changed:
            self._patience = after_seconds
            self._watch(after_seconds)

    def close(self) -> None:
        """Wait until every operation has ended or is abandoned, after `abort`. Nothing may be begun meanwhile."""
        for watch in self._watches:
            watch.join()

    def _watch(self, seconds: float) -> None:
        watch = threading.Thread(target=self._give_up, args=(seconds,), name="group-abort", daemon=True)
        self._watches.append(watch)
        watch.start()

    def _give_up(self, after_seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, after_seconds)
            left = list(self._waiting.values())
            self.is_stuck |= bool(left)
        if left:
            log.warning("%d operations of a group that is over do not end: they are abandoned", len(left))
        for outcome in left:
            self._end(outcome, ConnectionOver("the process group is over"))

    def _end(self, outcome: Future, result: object) -> None:
        with self._changed:
            if self._waiting.pop(id(outcome), None) is None:
                return
            self._changed.notify_all()
        outcome.set_result(result)


def _result(done: Future) -> object:
    """The value, or the error in its place."""
    try:
        return done.value()
    except RuntimeError as error:
        return error


def _unpacked(outcome: Future) -> Any:
    result = outcome.value()
    if isinstance(result, RuntimeError | ConnectionOver):
        raise result
    return result
