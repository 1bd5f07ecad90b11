"""A worker's part in one membership epoch: its connections to the servers, and the exchange of a step over them."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from optimus_workers.wire.data import connect
from optimus_workers.wire.errors import ConnectionOver
from optimus_workers.wire.frames import FrameType
from optimus_workers.wire.messages import Join
from optimus_workers.worker.link import Link


@dataclass(slots=True)
class Exchanged:
    """One push and pull over all servers at once."""

    push_seconds: float = 0.0
    """Until the last byte was handed to the network."""
    wait_seconds: float = 0.0
    """From then until the first byte of new parameters: other workers and the update."""
    pull_seconds: float = 0.0
    """From then until the last byte."""
    sent_bytes: int = 0
    received_bytes: int = 0
    version: int = 0
    """Of the parameters that came; async mode: the oldest over the servers."""


class Session:
    """Open until `abort`, which another thread may call at any time to end a transfer that will not end by itself."""

    def __init__(self, join: Join, parameter_floats: int) -> None:
        self.join = join
        self.version = -1
        """Of the worker's parameters; -1: not whole."""
        self._parameter_floats = parameter_floats
        self._links: list[Link] = []
        self._selector = selectors.DefaultSelector()
        self._aborted = False

    def open(self, token: str, values: Tensor) -> None:
        """Connect to all servers. Raises `OSError` or `WireError`."""
        for server in self.join.servers:
            if server.first == server.end:
                continue  # more servers than 16-float units
            connection = connect(server.address, token, self.join.epoch, self.join.rank)
            connection.setblocking(False)
            link = Link(connection, server, self.join.epoch, self.join.rank, values, self._parameter_floats)
            self._links.append(link)
            self._selector.register(connection, selectors.EVENT_READ, link)
            if self._aborted:
                raise ConnectionOver("the session was aborted")

    def abort(self) -> None:
        """End what is going on. Safe from other threads."""
        self._aborted = True
        for link in list(self._links):
            with suppress(OSError):
                link.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up. Only when nothing is going on."""
        self._aborted = True
        self._selector.close()
        for link in self._links:
            link.connection.close()
        self._links.clear()

    def fetch(self, values: Tensor) -> Exchanged:
        """Get all parameters, having brought the initial ones if it is upon this worker to do so."""
        for link in self._links:
            if self.join.brings_parameters:
                link.push(FrameType.INITIAL, 0, 0, 0.0, values)
            link.pull()
        return self._exchange()

    def push_and_pull(self, step: int, learning_rate: float, push: Tensor) -> Exchanged:
        """Send what was computed with the present parameters and get the new ones."""
        for link in self._links:
            link.push(FrameType.PUSH, step, self.version, learning_rate, push)
        return self._exchange()

    def _exchange(self) -> Exchanged:
        clock = _Clock(time.perf_counter)
        sent, received = self._counts()
        self.version = -1
        for link in self._links:
            link.expect()
            link.write()
        clock.note(any(link.is_sending for link in self._links), has_received=False)
        while busy := [link for link in self._links if not link.is_complete]:
            self._wait_and_move(busy)
            clock.note(any(link.is_sending for link in busy), has_received=self._counts()[1] > received)
        exchanged = clock.exchanged()
        now_sent, now_received = self._counts()
        exchanged.sent_bytes, exchanged.received_bytes = now_sent - sent, now_received - received
        exchanged.version = min((link.version for link in self._links), default=0)
        self.version = exchanged.version
        return exchanged

    def _wait_and_move(self, busy: list[Link]) -> None:
        for link in busy:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.is_sending else 0)
            if self._selector.get_key(link.connection).events != events:
                self._selector.modify(link.connection, events, link)
        for key, events in self._selector.select():
            link = key.data
            if events & selectors.EVENT_WRITE:
                link.write()
            if events & selectors.EVENT_READ:
                if link.is_complete:
                    raise ConnectionOver("a server hung up")  # nothing else can make a finished one readable
                link.read()

    def _counts(self) -> tuple[int, int]:
        return sum(link.n_sent for link in self._links), sum(link.n_received for link in self._links)


class _Clock:
    """Notes when sending ended and receiving began."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._sent_at: float | None = None
        self._first_byte_at: float | None = None

    def note(self, is_sending: bool, *, has_received: bool) -> None:
        now = self._clock()
        if not is_sending and self._sent_at is None:
            self._sent_at = now
        if has_received and self._first_byte_at is None:
            self._first_byte_at = now

    def exchanged(self) -> Exchanged:
        ended_at = self._clock()
        sent_at = self._started_at if self._sent_at is None else self._sent_at
        first_byte_at = max(sent_at, ended_at if self._first_byte_at is None else self._first_byte_at)
        return Exchanged(sent_at - self._started_at, first_byte_at - sent_at, ended_at - first_byte_at)
