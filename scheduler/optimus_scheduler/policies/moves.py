"""Steps from one size to the next, and what they gain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import Allocation, Resources

_STEPS = ((1, 0), (0, 1), (1, 1))
"""One worker, one server, or one of both: some jobs gain nothing from either alone (Optimus reference, 3.5)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a job may grow in this round."""

    workers: int
    servers: int
    tasks: int

    def allow(self, size: Allocation) -> bool:
        return size.workers <= self.workers and size.servers <= self.servers and self.allow_total(size)

    def allow_total(self, size: Allocation) -> bool:
        return size.workers + size.servers <= self.tasks


@dataclass(frozen=True, slots=True)
class Move:
    """One step up and its gain."""

    to: Allocation
    demand: Resources
    gain: float


def limits(outlook: Outlook, settings: Settings) -> Limits:
    """How far the job may grow now.

    A job without tasks starts with its minimum, a size that is not measured yet is kept, and while the speed model is
    being learned a job at most doubles: each of these would otherwise be a jump into the unknown.
    """
    present, most = outlook.present, outlook.maximum
    if not outlook.is_held and outlook.learning:
        least = outlook.minimum
        return Limits(least.workers, least.servers, least.workers + least.servers)
    tasks = present.workers + present.servers
    if outlook.is_held and not outlook.measured:
        return Limits(present.workers, present.servers, tasks)
    if outlook.learning:
        return Limits(most.workers, most.servers, int(settings.growth_factor * tasks))
    return Limits(most.workers, most.servers, most.workers + most.servers)


def discount(outlook: Outlook, settings: Settings) -> float:
    """Factor on all gains of the job: its priority, less for an uncertain forecast."""
    doubt = 1.0 - outlook.forecast.confidence
    return outlook.job.spec.priority * (1.0 - settings.uncertainty_discount * doubt)


class Steps:
    """The steps up that one job may take in a round; what does not depend on its size is reckoned once."""

    def __init__(self, outlook: Outlook, capacity: Resources, settings: Settings) -> None:
        self._outlook, self._most = outlook, outlook.maximum
        self._factor = discount(outlook, settings)
        demands = {step: outlook.step_demand(*step) for step in _STEPS}
        self._kinds = [
            (*step, demand, max(demand.dominant_share(capacity), 1e-12), sum(step) * settings.least_task_gain)
            for step, demand in demands.items()
        ]

    def moves(self, size: Allocation) -> Iterator[Move]:
        """Every step up from `size` that the owner allows; see `moves`."""
        speeds, most = self._outlook.speeds, self._most
        speed = speeds.at(size)
        for workers, servers, demand, share, least in self._kinds:
            if size.workers + workers > most.workers or size.servers + servers > most.servers:
                continue
            to = Allocation(size.workers + workers, size.servers + servers, size.gpu_type)
            log_ratio = math.log(speeds.at(to) / speed)
            if log_ratio < least:
                yield Move(to, demand, min(self._factor * log_ratio, 0.0))  # not worth a task: never granted
            else:
                yield Move(to, demand, self._factor * log_ratio / share)


def moves(outlook: Outlook, size: Allocation, capacity: Resources, settings: Settings) -> Iterator[Move]:
    """Every step up from `size` that the owner allows.

    gain = ln(f(to)/f(size)) / dominant share of the added tasks, times `discount`

    The logarithm makes jobs of any length comparable (the steps left cancel), dividing by the share makes workers
    and servers comparable whatever they are made of (Optimus reference, sections 3.2, 3.6).
    """
    return Steps(outlook, capacity, settings).moves(size)


def best_move(outlook: Outlook, candidates: list[Move], settings: Settings) -> Move | None:
    """The move with the largest gain; while learning, of those that are nearly as good the most instructive."""
    gaining = [move for move in candidates if move.gain > 0]
    if not gaining:
        return None
    best = max(gaining, key=lambda move: move.gain)
    if not outlook.learning:
        return best
    near = [move for move in gaining if move.gain >= (1.0 - settings.near_equal_gain) * best.gain]
    if len(near) == 1:
        return near[0]
    chosen = outlook.speeds.model.next_measurement([(move.to.workers, move.to.servers) for move in near])
    return next(move for move in near if (move.to.workers, move.to.servers) == chosen)
