"""The step barrier: which worker may begin which step. Pure.

Sync training is bulk synchronous parallel (BSP): all workers do the same step. Async workers wait for no other.
"""

from __future__ import annotations

from typing import Protocol

Ticket = tuple[str, int]
"""A worker and the step (counted from 0) that it may do."""


class Barrier(Protocol):
    """The steps of one membership epoch."""

    last_step: int | None
    """Steps after which there is none; the owner may change it meanwhile."""

    @property
    def version(self) -> int:
        """Steps completed."""

    @property
    def is_quiet(self) -> bool:
        """No worker is at a step: every ticket's update is applied on all servers."""

    @property
    def is_exhausted(self) -> bool:
        """The last step's ticket has been issued."""

    def tickets(self) -> list[Ticket]:
        """Issue the tickets of all steps that may begin now."""

    def done(self, worker: str, step: int) -> bool:
        """A worker has done its step; whether this completed a step of the job."""


class SyncBarrier:
    """All workers do the same step; the next one begins when all are done."""

    def __init__(self, workers: tuple[str, ...], version: int, last_step: int | None) -> None:
        self._workers = workers
        self.last_step = last_step
        self._busy: set[str] = set()
        self.version = version

    @property
    def is_quiet(self) -> bool:
        return not self._busy

    @property
    def is_exhausted(self) -> bool:
        return self.last_step is not None and self.version >= self.last_step

    def tickets(self) -> list[Ticket]:
        if self._busy or self.is_exhausted:
            return []
        self._busy = set(self._workers)
        return [(worker, self.version) for worker in self._workers]

    def done(self, worker: str, step: int) -> bool:
        if step != self.version or worker not in self._busy:
            return False
        self._busy.remove(worker)
        self.version += not self._busy
        return not self._busy


class ReportedSteps:
    """The steps of a script, which takes them by itself: worker 0 reports how far it is."""

    is_quiet = True

    def __init__(self, workers: tuple[str, ...], version: int, last_step: int | None) -> None:
        self._waiting = workers
        self.last_step = last_step
        self.version = version

    @property
    def is_exhausted(self) -> bool:
        return self.last_step is not None and self.version >= self.last_step

    def tickets(self) -> list[Ticket]:
        """One for each worker, when the membership is formed: what it reports counts from there on."""
        waiting, self._waiting = self._waiting, ()
        return [(worker, self.version) for worker in waiting]

    def done(self, worker: str, step: int) -> bool:  # noqa: ARG002 - worker 0 speaks for all
        """Worker 0 has reported that `step` steps are completed."""
        if step <= self.version:
            return False
        self.version = step
        return True


class AsyncBarrier:
    """Each worker gets the next free step as soon as it has done its last one."""

    def __init__(self, workers: tuple[str, ...], version: int, last_step: int | None) -> None:
        self._workers = workers
        self._busy: dict[str, int] = {}
        self.last_step = last_step
        self._next_step = version
        self.version = version

    @property
    def is_quiet(self) -> bool:
        return not self._busy

    @property
    def is_exhausted(self) -> bool:
        return self.last_step is not None and self._next_step >= self.last_step

    def tickets(self) -> list[Ticket]:
        issued: list[Ticket] = []
        for worker in self._workers:
            if worker in self._busy or self.is_exhausted:
                continue
            self._busy[worker] = self._next_step
            issued.append((worker, self._next_step))
            self._next_step += 1
        return issued

    def done(self, worker: str, step: int) -> bool:
        if self._busy.get(worker) != step:
            return False
        del self._busy[worker]
        self.version += 1
        return True
