"""The step gate: who may do which step now. Pure."""

from __future__ import annotations

from typing import Protocol

from optimus_workers.coordinator.plan import JobPlan

Ticket = tuple[str, int]
"""A worker and the step (counted from 0) that it may do."""


class Gate(Protocol):
    """Steps of one membership epoch."""

    @property
    def version(self) -> int:
        """Steps completed."""

    @property
    def is_quiet(self) -> bool:
        """No worker is at a step: everything handed out is applied everywhere."""

    @property
    def is_exhausted(self) -> bool:
        """The last step has been handed out."""

    def tickets(self) -> list[Ticket]:
        """Hand out what may be handed out now."""

    def done(self, worker: str, step: int) -> bool:
        """A worker has done its step; whether this completed a step of the job."""


class SyncGate:
    """Everybody does the same step; the next one begins when all are done."""

    def __init__(self, workers: tuple[str, ...], version: int, last_step: int | None) -> None:
        self._workers = workers
        self._last_step = last_step
        self._busy: set[str] = set()
        self.version = version

    @property
    def is_quiet(self) -> bool:
        return not self._busy

    @property
    def is_exhausted(self) -> bool:
        return self._last_step is not None and self.version >= self._last_step

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


class AsyncGate:
    """Each worker gets the next free step as soon as it has done its last one.

    With `max_lead` s, a worker waits while it has done s more steps in this epoch than the slowest one (stale
    synchronous parallel).
    """

    def __init__(
        self, workers: tuple[str, ...], version: int, last_step: int | None, max_lead: int | None = None
    ) -> None:
        self._n_done = dict.fromkeys(workers, 0)
        self._busy: dict[str, int] = {}
        self._last_step = last_step
        self._max_lead = max_lead
        self._next_step = version
        self.version = version

    @property
    def is_quiet(self) -> bool:
        return not self._busy

    @property
    def is_exhausted(self) -> bool:
        return self._last_step is not None and self._next_step >= self._last_step

    def tickets(self) -> list[Ticket]:
        handed: list[Ticket] = []
        slowest = min(self._n_done.values())
        for worker, n_done in self._n_done.items():
            ahead = self._max_lead is not None and n_done - slowest >= self._max_lead
            if worker in self._busy or ahead or self.is_exhausted:
                continue
            self._busy[worker] = self._next_step
            handed.append((worker, self._next_step))
            self._next_step += 1
        return handed

    def done(self, worker: str, step: int) -> bool:
        if self._busy.get(worker) != step:
            return False
        del self._busy[worker]
        self._n_done[worker] += 1
        self.version += 1
        return True


def make_gate(plan: JobPlan, workers: tuple[str, ...], version: int, last_step: int | None) -> Gate:
    """The gate of one membership epoch that begins at `version`."""
    if plan.is_async:
        return AsyncGate(workers, version, last_step, plan.max_lead)
    return SyncGate(workers, version, last_step)
