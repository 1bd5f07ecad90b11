"""Who runs the scheduling rounds: the holder of a lease in the database.

A lease that is not renewed is over after a while, and somebody else takes it with a higher token. What the former
leader then still tries to write is refused because of its older token (`StaleLeader`): it is fenced. The database's
clock tells when a lease is over, so those of the replicas need not agree. A round may take longer than a lease
(thousands of pods to be asked for); the lease is renewed beside it.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from optimus_service.process import identity as kernel
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.records import LeaseRecord
from optimus_service.store.repository import LEADER_LEASE, Repository

_log = structlog.get_logger(__name__)

_RENEWALS = 3
"""A lease is renewed so many times before it would be over: one lost renewal is no loss of leadership."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that may hold the lease, named so that others on its machine can see whether it still lives."""

    host: str
    """Host name, boot and process namespace: process ids mean something only to those with the same."""
    process: kernel.Process

    @classmethod
    def this_process(cls) -> Self:
        namespace = Path("/proc/self/ns/pid").readlink()
        return cls(f"{socket.gethostname()}/{kernel.boot_id()}/{namespace}", kernel.current())

    @property
    def name(self) -> str:
        return f"{self.host}/{self.process.pid}/{self.process.start_ticks}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The holder of this name; None if it is no such name."""
        host, *numbers = name.rsplit("/", 2)
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            return None
        return cls(host, kernel.Process(int(numbers[0]), int(numbers[1])))

    def sees_dead(self, other: Holder) -> bool:
        """Whether `other` ran on this machine and does not any more."""
        return other.host == self.host and not kernel.is_running(other.process)


class Leadership:
    """This process's claim to lead. Used by one thread, and by one of its own within `kept`."""

    def __init__(
        self,
        repository: Repository,
        lease_seconds: float,
        clock: Callable[[], float],
        holder: Holder | None = None,
        count_error: Callable[[str], None] = lambda _thread: None,
    ) -> None:
        """`clock` only grows, as `time.monotonic` does.

        `count_error` is called with unexpected errors, with the name of the thread.
        """
        self._count_error = count_error
        self._repository = repository
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._holder = holder or Holder.this_process()
        self._token: int | None = None
        self._renewed_at = -math.inf

    def claim(self) -> int | None:
        """Take the lease, or renew it when it is time.

        Returns:
            The fencing token while this process leads, None while somebody else does.

        Raises:
            DatabaseNotAvailable: who leads now is not known.
        """
        now = self._clock()
        is_fresh = now - self._renewed_at < self._lease_seconds / _RENEWALS
        if self._token is None or not is_fresh:
            self._token, other = self._acquire_or_see()
            if self._token is None and other is not None and self._release_if_dead(other):
                self._token = self._acquire()
            self._renewed_at = now
        return self._token

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While the caller is busy, the lease that it holds is renewed in time."""
        done = threading.Event()
        thread = threading.Thread(target=self._keep, args=(done,), name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _keep(self, done: threading.Event) -> None:
        while not done.wait(self._lease_seconds / _RENEWALS):
            try:
                if self._acquire() is None:
                    return  # somebody else leads by now; what the caller writes is refused
            except DatabaseNotAvailable:
                continue  # the caller notices that as well
            except Exception:  # noqa: BLE001 - without this thread a long round would lose its lease
                self._count_error("lease")
                _log.exception("the lease could not be renewed")
                continue
            self._renewed_at = self._clock()

    def step_down(self) -> None:
        """Somebody else was seen to lead: what is remembered of the lease is no longer true."""
        self._token = None

    def resign(self) -> None:
        """Let somebody else lead at once, instead of when the lease is over."""
        self._token = None
        self._repository.leases.release(LEADER_LEASE, self._holder.name)

    def _acquire(self) -> int | None:
        lease = self._repository.leases.acquire(LEADER_LEASE, self._holder.name, self._lease_seconds)
        return lease.token if lease is not None else None

    def _acquire_or_see(self) -> tuple[int | None, LeaseRecord | None]:
        """The token or, in the same transaction, who has the lease."""
        with self._repository.write() as tx:
            lease = tx.leases.acquire(LEADER_LEASE, self._holder.name, self._lease_seconds)
            return (lease.token, None) if lease is not None else (None, tx.leases.current(LEADER_LEASE))

    def _release_if_dead(self, lease: LeaseRecord) -> bool:
        """A leader that was killed on this machine cannot resign, but everybody here can see that it is gone."""
        other = Holder.parse(lease.holder)
        if other is None or not self._holder.sees_dead(other):
            return False
        self._repository.leases.release(LEADER_LEASE, lease.holder)
        return True
