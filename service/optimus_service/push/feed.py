"""One reader of the present state for all who watch, however many they are.

::

    database, cluster ──read once a period──▶ Feed ──what changed──▶ subscriber (a page)
                        while anybody watches      └──────────────▶ subscriber

A new subscriber gets everything, then only what changed. One that does not keep up is not waited for: changes are
merged until it takes them, so what is kept for it never exceeds one state.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from optimus_service.process.connections import waiting_now
from optimus_service.push.stream_state import StreamState
from optimus_service.store.errors import DatabaseNotAvailable

PERIOD_SECONDS = 1.0
"""How old what is shown may be."""
_LOAD = 0.1
"""Reading takes this share of one core at most: on a cluster so large that a read takes long, reads are rarer."""
HEARTBEAT_SECONDS = 15.0
"""Something is sent at least so often: proxies close silent connections, and a dead one is noticed."""
MAX_STREAMS_OF_USER = 20
"""Of all tokens of one user: so that nobody takes all places. Callers with OPTIMUS_TOKEN, or without any, are not
counted."""
MAX_SUBSCRIBERS = 500
"""Pages that watch one replica."""
PART_OF_CONNECTIONS = 0.25
"""That they may hold, where few file descriptors permit few connections."""

_log = structlog.get_logger(__name__)


class TooManyStreamsOfUser(Exception):
    """`MAX_STREAMS_OF_USER` streams of this user are open already."""


class TooManySubscribers(Exception):
    """As many watch as there may be."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is new since a subscriber's last message."""

    cluster: str | None = None
    """JSON of a `ClusterLine`; None: as before."""
    jobs: Mapping[str, str] = field(default_factory=dict)
    """JSON of `JobLine`s that are new or changed, by id."""
    gone: tuple[str, ...] = ()
    """Ids that are not shown any more."""
    said: dict[bool, bytes] = field(default_factory=dict, init=False, compare=False, repr=False)
    """As it is sent, once somebody has worked that out: one text for all who are sent the same."""

    @property
    def is_empty(self) -> bool:
        return self.cluster is None and not self.jobs and not self.gone


def difference(before: StreamState | None, after: StreamState) -> Change:
    """What changed from one state to the next. Pure."""
    if before is None:
        return Change(after.cluster, after.jobs)
    return Change(
        cluster=after.cluster if after.cluster != before.cluster else None,
        jobs={job_id: line for job_id, line in after.jobs.items() if before.jobs.get(job_id) != line},
        gone=tuple(job_id for job_id in before.jobs if job_id not in after.jobs),
    )


class Places:
    """How many may watch at one time, whatever they may see. Belongs to the event loop of one process."""

    def __init__(self) -> None:
        self._taken = 0
        self._by_user: Counter[str] = Counter()

    @contextmanager
    def taken(self, user: str | None = None) -> Iterator[None]:
        """One place; `user`: whose it is, None: of somebody whose places are not counted.

        Raises:
            TooManyStreamsOfUser: the user has as many as one may have.
            TooManySubscribers: as many watch as there may be.
        """
        if user is not None and self._by_user[user] >= MAX_STREAMS_OF_USER:
            raise TooManyStreamsOfUser
        if self._taken >= waiting_now(MAX_SUBSCRIBERS, PART_OF_CONNECTIONS):
            raise TooManySubscribers
        self._taken += 1
        self._by_user.update(() if user is None else (user,))
        try:
            yield
        finally:
            self._taken -= 1
            if user is not None:
                self._by_user[user] -= 1
                self._by_user += Counter()  # without those who watch no more


class Feed:
    """What those see who may read the same projects. Belongs to the event loop of one process."""

    def __init__(
        self,
        read: Callable[[], StreamState],
        is_closed: Callable[[], bool],
        *,
        places: Places | None = None,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """`read` is called in a thread; `is_closed` says that the service shuts down, which ends all streams."""
        self._read = read
        self._places = places or Places()
        self._is_closed = is_closed
        self._period_seconds = period_seconds
        self._state: StreamState | None = None
        self._differences: list[tuple[StreamState | None, Change]] = []
        """From what some who watch have seen to `_state`."""
        self._changed = asyncio.Condition()
        self._n_subscribers = 0
        self._reading: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, user: str | None = None) -> Iterator[AsyncGenerator[Change]]:
        """A place of `user` among those who watch, and what is new for it. It is taken before anything is awaited.

        Everything at first, then what changed; an empty change now and then. Ends when the service shuts down.

        Raises:
            TooManyStreamsOfUser: the user has as many as one may have.
            TooManySubscribers: as many watch as there may be.
        """
        with self._places.taken(user):
            self._n_subscribers += 1
            try:
                yield self._changes()
            finally:
                self._n_subscribers -= 1

    @property
    def is_watched(self) -> bool:
        """Whether anybody watches."""
        return self._n_subscribers > 0

    async def _changes(self) -> AsyncGenerator[Change]:
        if self._reading is None:
            self._state, self._differences = None, []  # what was seen before everybody left may be old
            self._reading = asyncio.create_task(self._run())
        sent: StreamState | None = None
        while not self._is_closed():
            await self._wait_for_other_than(sent)
            state = self._state
            yield Change() if state is None else self._since(sent, state)
            sent = state

    def _since(self, sent: StreamState | None, state: StreamState) -> Change:
        for before, change in self._differences:
            if before is sent:
                return change
        change = difference(sent, state)
        self._differences.append((sent, change))
        return change

    async def _wait_for_other_than(self, sent: StreamState | None) -> None:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._state is not sent or self._is_closed())
        except TimeoutError:
            return

    async def _run(self) -> None:
        """Read while anybody watches."""
        try:
            while self._n_subscribers > 0:
                started = time.monotonic()
                await self._look()
                took = time.monotonic() - started
                await asyncio.sleep(max(self._period_seconds, took / _LOAD - took))
                if self._is_closed():
                    await self._wake()
        finally:
            self._reading = None

    async def _look(self) -> None:
        try:
            state = await asyncio.to_thread(self._read)
        except DatabaseNotAvailable as error:
            # Watchers go on with what they have; the page says how old it is.
            _log.debug("the state cannot be read", error=str(error))
            return
        except Exception:  # noqa: BLE001 - without this task those who watch would see nothing new for ever
            _log.exception("the state cannot be read")
            return
        if state != self._state:
            self._state, self._differences = state, []
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
