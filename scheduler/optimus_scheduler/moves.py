"""Running jobs move to other nodes where that lets a waiting one start: what is free may lie in pieces.

A move stops a job as a change of size does. It pays if the work that is lost by the stops, with the margin of a change,
is less than what the waiting job can do until one of those jobs ends: so long it would wait otherwise. Work is counted
in parts of the cluster times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Directive, Resources
from optimus_scheduler.settings import Settings


class Moves:
    """Which jobs may move for others in one placement, and those that do."""

    def __init__(self, outlooks: Sequence[Outlook], capacity: Resources, settings: Settings) -> None:
        self._all, self._capacity, self._settings = outlooks, capacity, settings
        self.made: dict[str, str] = {}
        """By the id of each job that moves, the id of the one that starts in its place."""

    @cached_property
    def _outlooks(self) -> dict[str, Outlook]:
        return {one.id: one for one in self._all}

    def movable(self) -> Sequence[str]:
        """Jobs that may move, those that lose least by it first.

        Not one that would lose work or might miss its deadline, was changed a moment ago, or ends in this round.
        """
        found = [one for one in self._all if self._may_move(one)]
        return [one.id for one in sorted(found, key=lambda one: (self._loss(one), one.id))]

    def pay(self, waiting: str, moved: Sequence[str]) -> bool:
        """Whether these moves are worth the start of the job that waits."""
        one, others = self._outlooks[waiting], [self._outlooks[job_id] for job_id in moved]
        seconds = min((other.remaining_seconds(other.present) for other in others), default=0.0)
        gain = one.demand(one.minimum).dominant_share(self._capacity) * seconds
        return sum(map(self._loss, others)) <= gain

    def _may_move(self, one: Outlook) -> bool:
        job = one.job
        stays = job.directive is not Directive.RUN or one.forecast.converged or job.spec.deadline_at is not None
        is_settled = one.has_tasks and one.allocated_seconds >= self._settings.least_run_seconds
        return is_settled and job.unsaved_seconds <= 0 and not stays

    def _loss(self, one: Outlook) -> float:
        share = one.demand(one.present).dominant_share(self._capacity)
        return self._settings.rescale_margin * one.stop_seconds * share
