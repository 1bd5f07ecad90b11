"""From ideal sizes to sizes worth having: every change of a running job stops it for a while."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.base import Contest
from optimus_scheduler.policies.growth import Growth
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import Allocation, Resources


class _StepDown(NamedTuple):
    """One task that a job could give away. Sorts by loss; job id and `tie_break` make that order total."""

    loss_per_share: float
    job_id: str
    tie_break: int
    left: Allocation
    freed: Resources


_LEAST_SECONDS = 1e-3
"""Keeps ratios to the time left finite for a job that is about to end."""


def settle(
    admitted: Sequence[Outlook], growths: Mapping[str, Growth], contest: Contest, settings: Settings
) -> dict[str, Allocation]:
    """The size that each admitted job gets, by job id.

    Starts from what the jobs have and takes a change only for a reason: a minimum that has to be made room for
    (always), or a size that saves its job more than it costs everybody. Savings and losses are measured alike, in
    seconds: ln(s)·T for a job that runs s times as fast for T seconds, and a change costs its predicted stop. With
    (s - 1)·T instead, two equal jobs would take a task from each other for ever: 1→2 gains more than 2→1 loses.
    """
    settlement = Settlement(admitted, growths, contest, settings)
    settlement.make_room_for_minima()
    settlement.grant_improvements()
    return settlement.chosen


class Settlement:
    """The sizes chosen so far and the room that they leave."""

    def __init__(
        self,
        admitted: Sequence[Outlook],
        growths: Mapping[str, Growth],
        contest: Contest,
        settings: Settings,
    ) -> None:
        self._jobs = {outlook.id: outlook for outlook in sorted(admitted, key=lambda outlook: outlook.id)}
        self._growths = growths
        self._ideals = {job_id: growth.ideal for job_id, growth in growths.items()}
        self._capacity, self._settings = contest.capacity, settings
        self.chosen = {outlook.id: _start(outlook) for outlook in self._jobs.values()}
        self._room = contest.capacity
        for outlook in self._jobs.values():
            self._room = self._room - outlook.demand(self.chosen[outlook.id])
        self._leaving = contest.leaving
        for outlook in self._jobs.values():
            if self._is_near_end(outlook):
                self._leaving = self._leaving + outlook.demand(self.chosen[outlook.id])

    def make_room_for_minima(self) -> None:
        """Shrink jobs, least loss first, until everything chosen fits. The minima fit, so this ends."""
        taken = self._take(self._room, {job_id: job.minimum for job_id, job in self._jobs.items()}, self._jobs.values())
        assert taken is not None, "the minima of admitted jobs fit"
        self._commit(taken)

    def grant_improvements(self) -> None:
        """Let the jobs that are slower than they should be change, the largest saving per share first."""
        for outlook in sorted(self._jobs.values(), key=self._urgency):
            if self._improves(outlook, self._growths[outlook.id].ideal):
                self._grant_best(outlook)

    # --- improving -----------------------------------------------------------------------------------------------

    def _grant_best(self, outlook: Outlook) -> None:
        """The ideal if it is worth it, taking tasks from others if need be; else the best that fits in the room."""
        growth = self._growths[outlook.id]
        if self._exchange(outlook, growth.ideal):
            return
        for size in sorted(growth.path, key=outlook.speeds.at, reverse=True):
            if not (self._improves(outlook, size) and self._fits(outlook, size)):
                continue
            if self._is_worth(outlook, size, self._horizon(outlook, size), cost_to_others=0.0):
                self._commit({outlook.id: size})
                return

    def _exchange(self, outlook: Outlook, size: Allocation) -> bool:
        """Give the job `size`, shrinking others towards their ideals as far as needed, if that saves on the whole."""
        room = self._room - (outlook.demand(size) - outlook.demand(self.chosen[outlook.id]))
        if not _covers(room) and _covers(room + self._leaving):
            return False  # the room comes by itself, in a moment
        givers = (other for other in self._jobs.values() if other.id != outlook.id and self._may_give(other))
        taken = self._take(room, self._ideals, givers)
        if taken is None:
            return False
        changes = {**taken, outlook.id: size}
        # When the first of them ends, the room would come by itself: the exchange makes a difference until then.
        seconds = min(self._horizon(self._jobs[job_id], changed) for job_id, changed in changes.items())
        cost = sum(self._loss(self._jobs[job_id], less, seconds) for job_id, less in taken.items())
        if not self._is_worth(outlook, size, seconds, cost):
            return False
        self._commit(changes)
        return True

    def _improves(self, outlook: Outlook, size: Allocation) -> bool:
        least = 1.0 + self._settings.least_speedup
        return outlook.speedup(size, self.chosen[outlook.id]) >= least

    def _is_worth(self, outlook: Outlook, size: Allocation, seconds: float, cost_to_others: float) -> bool:
        """Whether what the job saves by having `size` for `seconds` exceeds what that costs others."""
        return -self._loss(outlook, size, seconds) > cost_to_others

    def _loss(self, outlook: Outlook, size: Allocation, seconds: float) -> float:
        """Seconds that the job loses by having `size` for `seconds`, its stop included; negative for a saving."""
        slowdown = -math.log(outlook.speedup(size, self.chosen[outlook.id]))
        return (slowdown * seconds + self._stop(outlook)) * outlook.job.spec.priority

    def _urgency(self, outlook: Outlook) -> tuple[float, str]:
        """Sorts improvements: largest saving per share of the added tasks first."""
        ideal, chosen = self._growths[outlook.id].ideal, self.chosen[outlook.id]
        added = outlook.demand(ideal) - outlook.demand(chosen)
        share = max(added.dominant_share(self._capacity), 1e-6)
        return -math.log(outlook.speedup(ideal, chosen)) * outlook.job.spec.priority / share, outlook.id

    def _may_give(self, outlook: Outlook) -> bool:
        """Whether tasks may be taken from the job for the sake of somebody else's speed."""
        ideal, chosen = self._ideals[outlook.id], self.chosen[outlook.id]
        if chosen.workers <= ideal.workers and chosen.servers <= ideal.servers:
            return False
        is_settled = outlook.measured or chosen != outlook.present
        return is_settled and not self._is_near_end(outlook)

    def _is_near_end(self, outlook: Outlook) -> bool:
        return outlook.remaining_seconds(self.chosen[outlook.id]) < self._settings.near_end_seconds

    # --- taking --------------------------------------------------------------------------------------------------

    def _take(
        self, room: Resources, floors: Mapping[str, Allocation], givers: Iterable[Outlook]
    ) -> dict[str, Allocation] | None:
        """The smaller sizes that bring `room` to zero or above in every resource; None when the floors forbid it.

        One task at a time from whoever loses least per share; who has given one already pays no second stop.
        """
        taken: dict[str, Allocation] = {}
        if _covers(room):
            return taken
        heap = [step for giver in givers for step in self._step_down(giver, taken, floors[giver.id], room)]
        heapq.heapify(heap)
        while heap:
            step = heapq.heappop(heap)
            giver = self._jobs[step.job_id]
            if _relieves(step.freed, room):
                taken[step.job_id] = step.left
                room = room + step.freed
                if _covers(room):
                    return taken
            for step in self._step_down(giver, taken, floors[giver.id], room):
                heapq.heappush(heap, step)
        return None

    def _step_down(
        self, giver: Outlook, taken: Mapping[str, Allocation], floor: Allocation, room: Resources
    ) -> list[_StepDown]:
        """The task that the job can give with the least loss; empty when it has none that would help."""
        size = taken.get(giver.id, self.chosen[giver.id])
        spec = giver.job.spec
        smaller = (
            (giver.size(size.workers - 1, size.servers), spec.worker.resources),
            (giver.size(size.workers, size.servers - 1), spec.server.resources),
        )
        steps = []
        for tie_break, (left, freed) in enumerate(smaller):
            if left.workers < floor.workers or left.servers < floor.servers or not _relieves(freed, room):
                continue
            loss = -math.log(giver.speedup(left, size))
            if giver.id not in taken:
                loss += self._stop(giver) / max(self._horizon(giver, size), _LEAST_SECONDS)
            share = max(freed.dominant_share(self._capacity), 1e-12)
            steps.append(_StepDown(loss * spec.priority / share, giver.id, tie_break, left, freed))
        return sorted(steps, key=lambda step: step[:3])[:1]

    # --- figures -------------------------------------------------------------------------------------------------

    def _stop(self, outlook: Outlook) -> float:
        """Seconds that a change must be able to pay for: none for a job that has no tasks or was changed already."""
        if not outlook.is_held or self.chosen[outlook.id] != outlook.present:
            return 0.0
        return outlook.stop_seconds * self._settings.rescale_margin

    def _horizon(self, outlook: Outlook, size: Allocation) -> float:
        return min(outlook.remaining_seconds(size), self._settings.horizon_seconds)

    def _fits(self, outlook: Outlook, size: Allocation) -> bool:
        return _covers(self._room - (outlook.demand(size) - outlook.demand(self.chosen[outlook.id])))

    def _commit(self, sizes: Mapping[str, Allocation]) -> None:
        for job_id, size in sizes.items():
            outlook = self._jobs[job_id]
            self._room = self._room - (outlook.demand(size) - outlook.demand(self.chosen[job_id]))
            self.chosen[job_id] = size


def _start(outlook: Outlook) -> Allocation:
    """What the job has, or its minimum; within what its owner allows."""
    if not outlook.is_held:
        return outlook.minimum
    least, most, present = outlook.minimum, outlook.maximum, outlook.present
    return outlook.size(
        min(max(present.workers, least.workers), most.workers), min(max(present.servers, least.servers), most.servers)
    )


def _covers(room: Resources) -> bool:
    """Whether no resource is short."""
    return room.cpu >= -1e-9 and room.memory_bytes >= 0 and all(count >= 0 for count in room.gpus.values())


def _relieves(freed: Resources, room: Resources) -> bool:
    """Whether `freed` holds some of a resource that is short."""
    return (
        (room.cpu < -1e-9 and freed.cpu > 0)
        or (room.memory_bytes < 0 and freed.memory_bytes > 0)
        or any(count < 0 and freed.gpus.get(kind, 0) > 0 for kind, count in room.gpus.items())
    )
