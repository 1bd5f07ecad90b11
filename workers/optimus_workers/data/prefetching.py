"""Batches made ahead by a process of their own, while the worker computes: hides the time that loading takes.

A process and not a thread, because torch has one random generator for all threads: the process seeds its own for each
micro-batch as the worker would, and sends the generator's state along with the batch, so that training computes the
same numbers with and without it. Batches come through shared memory; at most `depth` of them are on their way.
"""

from __future__ import annotations

import logging
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, multiprocessing

from optimus_workers.data.seeding import seed_torch
from optimus_workers.errors import TaskError

log = logging.getLogger(__name__)

MakeBatch = Callable[[list[int]], Any]
MAX_DEPTH = 1000


Key = tuple[int, bytes]


class Wanted(Protocol):
    """A micro-batch that is to be loaded."""

    @property
    def seed(self) -> int: ...

    @property
    def key(self) -> Key:
        """No other micro-batch has it: where batches change, micro-batches of the same seed have other examples."""

    @property
    def indices(self) -> NDArray[np.int64]: ...


class Made(NamedTuple):
    """A batch, and the state of torch's generator after it was made."""

    batch: Any
    generator: Tensor


class Prefetcher:
    """Make it before the process has threads that hold locks, or uses a GPU: the other process is a fork of it."""

    def __init__(self, make_batch: MakeBatch, depth: int) -> None:
        """`depth`: micro-batches that are made ahead."""
        self._depth = depth
        self._requested: deque[Key] = deque()  # in the order that they will arrive in
        self._upcoming: deque[Wanted] = deque()
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        self._connection: Connection | None = ours
        self._process = context.Process(target=_serve, args=(theirs, ours, make_batch), name="prefetching", daemon=True)
        self._process.start()
        theirs.close()

    def expect(self, micro_batches: Iterable[Wanted]) -> None:
        """What will be taken next, in this order; more than `depth` are of no use. What else was asked for is dropped
        as it comes."""
        self._upcoming = deque(micro_batch for micro_batch in micro_batches if micro_batch.key not in self._requested)
        self._request()

    def take(self, micro_batch: Wanted) -> Made | None:
        """The micro-batch, loaded, waited for if need be; None: it was not expected, or the process is gone.

        Raises `TaskError` with the traceback when the user's code failed.
        """
        while self._connection is not None and self._expects(micro_batch.key):
            try:
                answer = self._connection.recv()
            except (EOFError, OSError) as error:
                self._gone(error)
                return None
            is_wanted = self._requested.popleft() == micro_batch.key
            self._request()
            if is_wanted:
                return _made(answer)
        return None

    def _expects(self, key: Key) -> bool:
        # Those of a step that is not wanted any more come first, and make room.
        return key in self._requested or any(micro_batch.key == key for micro_batch in self._upcoming)

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._process.join()

    def _request(self) -> None:
        while self._connection is not None and self._upcoming and len(self._requested) < self._depth:
            micro_batch = self._upcoming.popleft()
            try:
                self._connection.send((micro_batch.seed, micro_batch.indices.tolist()))
            except OSError as error:
                self._gone(error)
                return
            self._requested.append(micro_batch.key)

    def _gone(self, error: BaseException) -> None:
        self.close()
        self._requested.clear()
        code = self._process.exitcode
        log.warning("the prefetching process ended (exit code %s, %s): batches are made here from now on", code, error)


def check_depth(depth: object) -> None:
    """Raises `TaskError`."""
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= MAX_DEPTH:
        raise TaskError(f"prefetch must be a whole number from 0 to {MAX_DEPTH}, not {depth!r}")


def _made(answer: Made | str) -> Made:
    if isinstance(answer, str):
        raise TaskError(f"the batch could not be made; in the prefetching process:\n{answer}")
    return Made(*answer)


# --- in the other process --------------------------------------------------------------------------------------------


def _serve(connection: Connection, parents_end: Connection, make_batch: MakeBatch) -> None:
    """Make what is asked for until the worker hangs up or is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the worker's handler is not for this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parents_end.close()  # otherwise its end would never be noticed
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            seed, indices = connection.recv()
            connection.send(_make(make_batch, seed, indices))


def _make(make_batch: MakeBatch, seed: int, indices: Sequence[int]) -> Made | str:
    seed_torch(seed)
    try:
        return Made(make_batch(list(indices)), torch.get_rng_state())
    except (Exception, SystemExit):  # noqa: BLE001 - whatever the user's code raises goes to the worker
        return traceback.format_exc()
