"""The default policy: marginal gain per share, charged with the cost of changing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.base import Contest, Grant
from optimus_scheduler.policies.first_grants import first_grants
from optimus_scheduler.policies.growth import Growth, grow
from optimus_scheduler.policies.moves import Move, moves
from optimus_scheduler.policies.settlement import settle
from optimus_scheduler.settings import Settings
from optimus_scheduler.transfer import spread_least_transfer
from optimus_scheduler.types import NOTHING, Allocation, Reason, Resources


class OptimusPolicy:
    """Everybody's minimum, then the largest gain per share, then only the changes that pay.

    The gains are those of the paper with the corrections of the Optimus reference, section 8.4: per dominant share,
    scale-free (log ratio of speeds), with joint moves, discounted by uncertainty.
    """

    name = "optimus"
    keeps_places = True
    places_in_order = False
    spread = staticmethod(spread_least_transfer)

    def allocate(self, contest: Contest, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every contender; together they fit in the capacity."""
        capacity = contest.capacity
        first = first_grants(contest.contenders, capacity, settings)
        growths = grow(first.admitted, first.room, capacity, settings)
        chosen = settle(first.admitted, growths, contest, settings)
        room = capacity
        for outlook in first.admitted:
            room = room - outlook.demand(chosen[outlook.id])
        grown = frozenset(outlook.id for outlook in first.admitted if chosen[outlook.id] != outlook.minimum)
        explain = _Explanation(room, capacity, grown, settings)
        grants = {outlook.id: Grant(NOTHING, Reason.WAITING_FOR_RESOURCES) for outlook in first.waiting}
        for outlook in first.admitted:
            grants[outlook.id] = explain.grant(outlook, chosen[outlook.id], growths[outlook.id])
        return grants


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Finds the reason for what a job got."""

    room: Resources
    """What is left free."""
    capacity: Resources
    grown: frozenset[str]
    """Jobs that have more than their minimum."""
    settings: Settings

    def grant(self, outlook: Outlook, size: Allocation, growth: Growth) -> Grant:
        candidates = list(moves(outlook, size, self.capacity, self.settings))
        best = max(candidates, key=lambda move: move.gain, default=None)
        reason = self._to_change(outlook, size) if size != outlook.present else self._to_keep(outlook, growth, best)
        return Grant(size, reason, growth.ideal, growth.gain, best.gain if best else None)

    def _to_change(self, outlook: Outlook, size: Allocation) -> Reason:
        if outlook.is_held and size.workers + size.servers < outlook.present.workers + outlook.present.servers:
            return Reason.BETTER_USED_ELSEWHERE
        return Reason.LEARNING_SPEED if outlook.learning else Reason.GRANTED_MORE

    def _to_keep(self, outlook: Outlook, growth: Growth, best: Move | None) -> Reason:
        if not outlook.measured:
            return Reason.LEARNING_SPEED
        if best is None:
            return Reason.AT_MAXIMUM
        if outlook.speedup(growth.ideal, outlook.present) >= 1.0 + self.settings.least_speedup:
            added = outlook.demand(growth.ideal) - outlook.demand(outlook.present)
            return Reason.NOT_WORTH_RESCALING if added.fits_in(self.room) else Reason.BETTER_USED_ELSEWHERE
        if best.gain <= 0:
            return Reason.NO_FURTHER_GAIN
        is_free, others_have_it = best.demand.fits_in(self.room), bool(self.grown - {outlook.id})
        return Reason.UNCHANGED if is_free or not others_have_it else Reason.BETTER_USED_ELSEWHERE
