"""Stores posts of many callers in few transactions: those that come while one commits go into the next one together.

::

    post ─▶ waiting ─▶ taken together ─▶ one transaction ─▶ answers
            429 when MAX_WAITING samples wait already

An answer is given after the commit, so what is acknowledged survives the death of the process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from optimus_service.store.errors import DatabaseNotAvailable, InvalidValue, JobNotFound
from optimus_service.store.records import AddedSamples, PostedSamples

MAX_WAITING = 20_000
"""Samples that may wait: less than a second's work of one process. Who comes beyond that is asked to come later."""
MAX_TOGETHER = 5_000
"""Samples of one transaction: bounds how long others wait for the database, and the parameters of a statement."""

Added = AddedSamples | JobNotFound | InvalidValue
Store = Callable[[Sequence[PostedSamples]], Sequence[Added]]
_Waiting = tuple[PostedSamples, Future[AddedSamples]]


class QueueIsFull(Exception):
    """As many samples wait as may: try again later."""


class SampleQueue:
    """Safe to use from many threads. One thread of its own commits; it has ended when nothing waits."""

    def __init__(self, store: Store, max_waiting: int = MAX_WAITING) -> None:
        """`store`: `Samples.add`."""
        self._store = store
        self._max_waiting = max_waiting
        self._lock = threading.Lock()  # guards what follows
        self._waiting: deque[_Waiting] = deque()
        self._n_waiting = 0
        self._is_committing = False
        self._thread = ThreadPoolExecutor(1, "samples")

    def put(self, post: PostedSamples) -> Future[AddedSamples]:
        """Store the post soon; the result comes after the commit.

        The result may raise what `Samples.add` returns in the place of a result.

        Raises:
            QueueIsFull: the post was not taken.
        """
        answer: Future[AddedSamples] = Future()
        with self._lock:
            if self._n_waiting and self._n_waiting + len(post.columns) > self._max_waiting:
                raise QueueIsFull
            self._waiting.append((post, answer))
            self._n_waiting += len(post.columns)
            if not self._is_committing:
                self._is_committing = True
                self._thread.submit(self._commit_all)
        return answer

    def _commit_all(self) -> None:
        while group := self._next_group():
            # Whoever went away meanwhile has no answer to wait for, and sends again.
            _commit(self._store, [each for each in group if each[1].set_running_or_notify_cancel()])

    def _next_group(self) -> list[_Waiting]:
        """The posts that waited longest; an empty list ends the thread's work."""
        group: list[_Waiting] = []
        n_samples = 0
        with self._lock:
            while self._waiting and (not group or n_samples + len(self._waiting[0][0].columns) <= MAX_TOGETHER):
                group.append(self._waiting.popleft())
                n_samples += len(group[-1][0].columns)
            self._n_waiting -= n_samples
            self._is_committing = bool(group)
        return group


def _commit(store: Store, group: Sequence[_Waiting]) -> None:
    """Store these posts together and answer; when that fails for a reason of a post's own, each alone."""
    try:
        answers: Sequence[Added | Exception] = store([post for post, _ in group]) if group else ()
    except DatabaseNotAvailable as error:
        answers = [error] * len(group)
    except Exception as error:  # noqa: BLE001 - whoever waits gets it
        if len(group) > 1:
            for each in group:
                _commit(store, [each])
            return
        answers = [error]
    for (_, answer), added in zip(group, answers, strict=True):
        if isinstance(added, Exception):
            answer.set_exception(added)
        else:
            answer.set_result(added)
