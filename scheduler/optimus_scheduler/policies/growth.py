"""Hand out what is free, always to the task with the largest marginal gain."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.moves import Limits, Move, Steps, best_move, limits
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import Allocation, Resources


@dataclass(frozen=True, slots=True)
class Growth:
    """How one job grew from its minimum."""

    path: tuple[Allocation, ...]
    """Every size on the way, the minimum first."""
    gain: float | None
    """Of the last task granted; None when there was none."""

    @property
    def ideal(self) -> Allocation:
        return self.path[-1]


def grow(admitted: Sequence[Outlook], room: Resources, capacity: Resources, settings: Settings) -> dict[str, Growth]:
    """Grow all jobs from their minima into `room`; by job id.

    Greedy with a heap: after each grant only that job's gain is computed again, so T tasks for n jobs cost
    O((n + T) log n). When a task does not fit, smaller ones still may; what did not fit once never will again.

    References: Peng et al., EuroSys 2018, section 4.1, with the corrections of the Optimus reference, section 3.5.
    """
    grower = _Grower(admitted, room, capacity, settings)
    return grower.run()


class _Grower:
    """The state of one run: sizes so far, room left, and a heap with each job's next move."""

    def __init__(self, admitted: Sequence[Outlook], room: Resources, capacity: Resources, settings: Settings) -> None:
        self._jobs = {outlook.id: outlook for outlook in admitted}
        self._limits: dict[str, Limits] = {outlook.id: limits(outlook, settings) for outlook in admitted}
        self._growth = {outlook.id: Growth((outlook.minimum,), None) for outlook in admitted}
        self._steps = {outlook.id: Steps(outlook, capacity, settings) for outlook in admitted}
        self._room, self._settings = room, settings
        self._heap: list[tuple[float, str]] = []
        self._next: dict[str, Move] = {}

    def run(self) -> dict[str, Growth]:
        for job_id in sorted(self._jobs):
            self._offer(job_id)
        while self._heap:
            _, job_id = heapq.heappop(self._heap)
            move = self._next[job_id]
            if move.demand.fits_in(self._room):
                self._room = self._room - move.demand
                self._growth[job_id] = Growth((*self._growth[job_id].path, move.to), move.gain)
            self._offer(job_id)
        return self._growth

    def _offer(self, job_id: str) -> None:
        """Put the job's best move that is allowed and fits on the heap, if there is one."""
        outlook, allowed = self._jobs[job_id], self._limits[job_id]
        candidates = [
            move
            for move in self._steps[job_id].moves(self._growth[job_id].ideal)
            if allowed.allow(move.to) and move.demand.fits_in(self._room)
        ]
        move = best_move(outlook, candidates, self._settings)
        if move is not None:
            self._next[job_id] = move
            heapq.heappush(self._heap, (-move.gain, job_id))
