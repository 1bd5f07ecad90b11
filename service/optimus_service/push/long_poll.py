"""Where long polls wait for a job's wanted generation to grow.

::

    GET membership ──▶ wait(job, after) ─┐                      ┌── notify(job, generation): this replica's own round
                                         ├──▶ waiters by job ◀──┤
    GET membership ──▶ wait(job, after) ─┘                      └── one query a second: what other replicas did

A waiter costs a future: no thread, no database connection. However many wait, one query a second is made, and none
while nobody waits. A wake-up that is missed (it came between reading and waiting) is repaired by the next query.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import structlog

from optimus_service.process.connections import waiting_now
from optimus_service.store.errors import DatabaseNotAvailable

POLL_SECONDS = 1.0
"""How late a change made by another replica may be seen."""
MAX_WAITERS = 10_000
"""Long polls held at one time; one per job is the rule, so this is far above what one service schedules."""
PART_OF_CONNECTIONS = 0.5
"""That long polls may hold, where few file descriptors permit few connections."""
MAX_WAITERS_OF_JOB = 8
"""Of one job: its coordinator's, and some whose client hung up. One more, and the oldest is answered as at its timeout:
nobody is told when a client hangs up, but who asked last is there."""

ReadGenerations = Callable[[Collection[str]], Mapping[str, int]]
"""The wanted generation of each of these jobs, of ended ones, too, by job id."""

_log = structlog.get_logger(__name__)


class TooManyWaiters(Exception):
    """As many long polls are held as there may be."""


@dataclass(eq=False, slots=True)
class _Waiter:
    after_generation: int
    wakened: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def _release(waiter: _Waiter) -> None:
    if not waiter.wakened.done():
        waiter.wakened.set_result(waiter.after_generation)


class LongPolls:
    """Wakes long polls of one process. `wait` and `run` belong to the event loop; the rest may be called anywhere."""

    def __init__(self, read_generations: ReadGenerations, *, poll_seconds: float = POLL_SECONDS) -> None:
        """`read_generations`: blocking, called in a thread."""
        self._read_generations = read_generations
        self._poll_seconds = poll_seconds
        self._waiters: dict[str, dict[_Waiter, None]] = {}
        """The oldest of each job first."""
        self._n_waiters = 0
        self._somebody_waits = asyncio.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait(self, job_id: str, after_generation: int, timeout_seconds: float) -> int:
        """The job's generation as soon as it is above `after_generation`.

        At the timeout, after `close`, and once `MAX_WAITERS_OF_JOB` later ones wait for this job: `after_generation`
        itself.

        Raises:
            TooManyWaiters: as many are waiting as there may be.
        """
        self._loop = asyncio.get_running_loop()
        if self._closed:
            return after_generation
        waiter = self._enter(job_id, after_generation)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await waiter.wakened
        except TimeoutError:
            return after_generation
        finally:
            self._leave(job_id, waiter)

    def notify(self, job_id: str, generation: int) -> None:
        """Wake whoever waits for less than `generation` of this job. Thread-safe; harmless when nobody waits."""
        self._call_in_loop(lambda: self._wake(job_id, generation))

    def close(self) -> None:
        """End all waits now, and every later one at once. Thread-safe; to be called when shutting down begins."""
        self._closed = True
        self._call_in_loop(self._release_all)

    async def run(self) -> None:
        """Ask for the generations once a period while somebody waits. Runs until cancelled."""
        self._loop = asyncio.get_running_loop()
        available = True
        while True:
            await self._somebody_waits.wait()
            await asyncio.sleep(self._poll_seconds)
            available = await self._poll(available)

    async def _poll(self, was_available: bool) -> bool:
        try:
            generations = await asyncio.to_thread(self._read_generations, list(self._waiters))
        except DatabaseNotAvailable as error:
            # Waiters go on waiting; they are no worse off than with a database that has nothing new.
            if was_available:
                _log.warning("long polls see no changes of other replicas", error=str(error))
            return False
        except Exception:  # noqa: BLE001 - without this task long polls would miss other replicas for ever
            _log.exception("long polls see no changes of other replicas")
            return False
        for job_id in list(self._waiters):
            self._wake(job_id, generations.get(job_id, 0))
        return True

    @property
    def closed(self) -> bool:
        """Whether shutting down has begun."""
        return self._closed

    @property
    def n_waiters(self) -> int:
        """Long polls that are held now."""
        return self._n_waiters

    def _enter(self, job_id: str, after_generation: int) -> _Waiter:
        if self._n_waiters >= waiting_now(MAX_WAITERS, PART_OF_CONNECTIONS):
            raise TooManyWaiters
        waiter = _Waiter(after_generation)
        waiters = self._waiters.setdefault(job_id, {})
        waiters[waiter] = None
        for oldest in list(waiters)[:-MAX_WAITERS_OF_JOB]:
            _release(oldest)
        self._n_waiters += 1
        self._somebody_waits.set()
        return waiter

    def _leave(self, job_id: str, waiter: _Waiter) -> None:
        waiters = self._waiters[job_id]
        del waiters[waiter]
        if not waiters:
            del self._waiters[job_id]
        self._n_waiters -= 1
        if self._n_waiters == 0:
            self._somebody_waits.clear()

    def _wake(self, job_id: str, generation: int) -> None:
        for waiter in self._waiters.get(job_id, ()):
            if generation > waiter.after_generation and not waiter.wakened.done():
                waiter.wakened.set_result(generation)

    def _release_all(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                _release(waiter)

    def _call_in_loop(self, action: Callable[[], None]) -> None:
        if self._loop is None:
            return  # nobody has waited yet
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(action)
