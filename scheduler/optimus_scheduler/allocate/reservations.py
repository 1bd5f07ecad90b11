"""Reservations: claims of jobs are met first, under any policy.

A claim is a size that a job gets before others get anything. The policy is given jobs whose minimum is their claim,
and only so many others that all minima fit beside the claims: whatever it does, each of them can be served. The others
are taken in this order:

1. jobs that run, by priority, those first that a pause costs most work, then the longer running (of two that keep
   checkpoints the last started is the first to be paused);
2. waiting jobs that the policy by itself would have started now;
3. other waiting jobs, by priority and arrival. None passes one that has waited for `patience_seconds`.

A claim of a deadline yields to a running job that keeps no checkpoint, where its pause would lose more than the claim
gains by it, and where the claim can wait for an end: see `loses_more`. While it can wait at all, it yields to one that
has just got its tasks. Guarantees of quotas wait for near ends only.

A policy that does not give minima first (`fifo`, `tiresias`, `srtf`) may still leave a claim unmet. Then all claims are
granted as they are, and the policy shares out the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from optimus_scheduler.allocate.deadline_budget import bounded, most_by_alike_runs
from optimus_scheduler.allocate.policy import AllocationInput, Grant, Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, Reason, Resources
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.settings import Settings

Claims = Mapping[str, Allocation]
"""By job id."""
Grants = dict[str, Grant]
InOrder = Callable[[Sequence[Outlook]], Sequence[Outlook]]


@dataclass(frozen=True, slots=True)
class ReservingPolicy:
    """A policy that meets claims first; one for all allocations of a round."""

    policy: Policy
    settings: Settings
    leaving: Resources = field(default_factory=Resources)
    now: float = 0.0

    def without_claims(self, competing: Sequence[Outlook], capacity: Resources) -> Grants:
        """What the policy does by itself."""
        if not competing:
            return {}
        inputs = AllocationInput(tuple(competing), capacity, self.leaving, self.now)
        return dict(self.policy.allocate(inputs, self.settings))

    def with_claims(
        self,
        competing: Sequence[Outlook],
        capacity: Resources,
        claims: Claims,
        waiting_reason: Reason = Reason.WAITING_FOR_RESOURCES,
    ) -> Grants:
        """Grants in which every claim is met; the claims fit in `capacity`.

        `waiting_reason` is the reason of jobs that get nothing because of the claims.
        """
        grants = self.without_claims(competing, capacity)
        if _all_covered(grants, claims):
            return grants
        return self._shared(competing, capacity, grants, claims, waiting_reason)

    def with_deadlines(
        self, competing: Sequence[Outlook], capacity: Resources, claims: Claims, in_order: InOrder
    ) -> tuple[Grants, frozenset[str]]:
        """Grants in which the claims of deadlines are met that have to be; and the jobs whose are not, though they
        cannot wait any longer.

        A claim is not met where that would lose more work than it gains, nor while it can wait and would pause a job
        that has just got its tasks. `in_order`: the jobs with claims, who comes first of all first.
        """
        grants = self.without_claims(competing, capacity)
        if _all_covered(grants, claims):
            return grants, frozenset()
        found = _Meeting(competing, capacity, claims, grants, self.now, self.settings).met(in_order)
        shared = self._shared(competing, capacity, grants, found.sizes, Reason.WAITING_FOR_RESOURCES)
        for job_id, again_at in found.waits_until.items():
            if not covers(shared[job_id].allocation, claims[job_id]):
                shared[job_id] = shared[job_id]._replace(again_at=again_at)
        return shared, found.unmet

    def _shared(
        self, competing: Sequence[Outlook], capacity: Resources, grants: Grants, claims: Claims, waiting_reason: Reason
    ) -> Grants:
        """All of these claims met, and the rest as the policy shares it. `grants`: what it does without claims."""
        by_id = {one.id: one for one in competing}
        sized = ((by_id[job_id], size) for job_id, size in claims.items())
        claiming = [bounded(one, size, one.maximum)._replace(claimed=True) for one, size in sized]
        available = remaining(capacity, demand_of(claiming, claims))
        kept, out = _admitted([one for one in competing if one.id not in claims], available, grants, self.settings)
        shared = self.without_claims([*claiming, *kept], capacity)
        if not _all_covered(shared, claims):
            granted = {one.id: _as_claimed(one, claims[one.id]) for one in claiming}
            shared = {**granted, **self.without_claims(kept, available)}
        for job_id, claim in claims.items():
            if not covers(grants[job_id].allocation, claim):
                shared[job_id] = shared[job_id]._replace(is_claimed=True)
        return {**shared, **{one.id: Grant(NOTHING, waiting_reason) for one in out}}


class _Met(NamedTuple):
    """Which claims of deadlines are met."""

    sizes: dict[str, Allocation]
    """Of these jobs, and of those that keep what they have, as their pause would lose more."""
    waits_until: dict[str, float]
    """Of those that can wait until then, POSIX seconds."""
    unmet: frozenset[str]
    """Those that cannot wait, and have no room."""


class _Meeting:
    """Meets the claims of deadlines one after the other, each beside what others keep from it.

    Each can wait for so long as its own deadline lets it: that one has to begin now takes nothing from a job that the
    others can wait for. Those that cannot wait come first.
    """

    def __init__(
        self,
        competing: Sequence[Outlook],
        capacity: Resources,
        claims: Claims,
        grants: Grants,
        now: float,
        settings: Settings,
    ) -> None:
        self._competing, self._capacity, self._claims = competing, capacity, claims
        self._grants, self._now, self._settings = grants, now, settings
        self._by_id = {one.id: one for one in competing}
        self._met: dict[str, Allocation] = {}
        self._stays: dict[str, Allocation] = {}
        """Jobs that are not paused for a claim, with what they have."""
        self._kept: list[Outlook] = []
        """Others for which there is room beside these, the first to be left out last ..."""
        self._gone: frozenset[str] = frozenset()
        """... and those for which there is none."""
        self._known_free: tuple[list[Outlook], Resources] | None = None

    def met(self, in_order: InOrder) -> _Met:
        if not any(one.has_tasks for one in self._admitted_beside(self._claims)[1]):
            return _Met(dict(self._claims), {}, frozenset())
        ordered = list(in_order([self._by_id[job_id] for job_id in self._claims]))
        lacking = [one for one in ordered if not covers(one.present, self._claims[one.id])]
        without = {one.id for one in lacking}
        self._put({job_id: size for job_id, size in self._claims.items() if job_id not in without}, {})
        room = RoomAhead(self._competing, lacking, self._capacity)
        claiming = list[Claiming]()
        for one in lacking:
            size = self._claims[one.id]
            claiming.append(Claiming.of(one, size, room.seconds_until(one.demand(size)), self._now, self._settings))
        waits_until, unmet = dict[str, float](), set[str]()
        for each in self._unmet(sorted(claiming, key=lambda each: each.can_wait)):
            if each.can_wait:
                waits_until[each.outlook.id] = self._now + each.spare
            elif not self._has_met_instead(each, ordered):
                unmet.add(each.outlook.id)
        return _Met(self._met | self._stays, waits_until, frozenset(unmet))

    def _unmet(self, claiming: Sequence[Claiming]) -> Iterator[Claiming]:
        """Meets those of them that can be, and yields each other one in its turn."""
        done, together = 0, len(claiming)
        while done < len(claiming):
            some = claiming[done : done + together]
            if len(some) > 1 and not self._has_met_all(some):
                together = 1
                continue
            if len(some) == 1 and not self._has_met(some[0]):
                yield some[0]
                together = 1
            else:
                together *= 2  # many claims are met in a few looks at all jobs
            done += len(some)

    def _has_met_all(self, claiming: Sequence[Claiming]) -> bool:
        """Whether they have been met, as that pauses no job that one of them spares."""
        met = self._met | {each.outlook.id: each.size for each in claiming}
        kept, out = self._admitted_beside(met | self._stays)
        new = [one for one in out if one.has_tasks and one.id not in self._gone]
        if any(each.spares(one, self._settings) for one in new for each in claiming):
            return False
        self._met, self._kept, self._gone = met, kept, frozenset(one.id for one in out)
        return True

    def _has_met(self, claiming: Claiming) -> bool:
        """Whether the claim has been met."""
        stays = self._stays | self._staying(claiming)
        met = self._met | {claiming.outlook.id: claiming.size}
        while True:
            sizes = met | stays
            if not self._demand(sizes).fits_in(self._capacity):
                return False
            out = self._admitted_beside(sizes)[1]
            losing = [one for one in out if one.id not in self._gone and claiming.spares(one, self._settings)]
            if not losing:
                self._put(met, stays)
                return True
            # What these keep may take the room of others that lose more, too.
            stays.update((one.id, one.present) for one in losing)

    def _staying(self, claiming: Claiming) -> dict[str, Allocation]:
        """Of the jobs in the way of the claim, those that it spares; the last ones are in the way first."""
        stays, needed, free = dict[str, Allocation](), claiming.outlook.demand(claiming.size), self._free()
        if claiming.outlook in self._kept:
            free = free + claiming.outlook.demand(claiming.outlook.minimum)
        for one in reversed(self._kept):
            if needed.fits_in(free):
                break
            if one is claiming.outlook:
                continue
            if claiming.spares(one, self._settings):
                stays[one.id] = one.present
                needed = needed + remaining(one.demand(one.present), one.demand(one.minimum))
            else:
                free = free + one.demand(one.minimum)
        return stays

    def _has_met_instead(self, claiming: Claiming, ordered: Sequence[Outlook]) -> bool:
        """Whether the claim of one that cannot wait has been met in the stead of those that come after it."""
        before = self._met, self._stays
        after = ordered[ordered.index(claiming.outlook) + 1 :]
        stays, met = self._stays | self._staying(claiming), dict(self._met)
        for one in reversed(after):
            if one.id not in met or not one.has_tasks:
                continue
            del met[one.id]
            if self._demand(met | stays | {claiming.outlook.id: claiming.size}).fits_in(self._capacity):
                self._put(met, self._stays)
                if self._has_met(claiming):
                    return True
                break
        self._put(*before)
        return False

    def _put(self, met: dict[str, Allocation], stays: dict[str, Allocation]) -> None:
        self._met, self._stays = met, stays
        self._kept, out = self._admitted_beside(met | stays)
        self._gone = frozenset(one.id for one in out)

    def _admitted_beside(self, sizes: Claims) -> tuple[list[Outlook], list[Outlook]]:
        available = remaining(self._capacity, self._demand(sizes))
        others = [one for one in self._competing if one.id not in sizes]
        return _admitted(others, available, self._grants, self._settings)

    def _free(self) -> Resources:
        """Beside what is claimed and stays, and the minima of the jobs that are kept."""
        if self._known_free is None or self._known_free[0] is not self._kept:
            others = demand_of(self._kept, {one.id: one.minimum for one in self._kept})
            self._known_free = self._kept, remaining(self._capacity, self._demand(self._met | self._stays) + others)
        return self._known_free[1]

    def _demand(self, sizes: Claims) -> Resources:
        return demand_of([self._by_id[job_id] for job_id in sizes], sizes)


class Claiming(NamedTuple):
    """A job that lacks what its deadline claims."""

    outlook: Outlook
    size: Allocation
    room_in: float
    """Seconds until predicted ends leave room for it without a pause; infinite: they do not."""
    slack: float
    """Seconds that it can wait until it begins, and still be in time; by what is known of it."""
    spare: float
    """Seconds until others have to be paused for it: their tasks take a while to leave. One of which nothing is known
    takes as long as is typical."""

    @classmethod
    def of(cls, outlook: Outlook, size: Allocation, room_in: float, now: float, settings: Settings) -> Claiming:
        """`now`: POSIX seconds."""
        margin = settings.deadline_margin
        slack = _slack(outlook, size, now, margin, math.inf)
        spare = _slack(outlook, size, now, margin, margin * outlook.typical_seconds) - settings.drain_seconds
        return cls(outlook, size, room_in, slack, spare)

    @property
    def can_wait(self) -> bool:
        """Whether that is so in the next second, too."""
        return self.spare > _LEAST_WAIT_SECONDS

    def spares(self, victim: Outlook, settings: Settings) -> bool:
        """Whether a job is not paused for it: see `loses_more`; nor one that has just got its tasks, while it can wait.

        That it can, only as far as the wait does not cost it its deadline: it must not come to lose more by a pause
        meanwhile, unless it has ended by then or others leave room.
        """
        if not victim.has_tasks:
            return False
        if loses_more(victim, self):
            return True
        if victim.allocated_seconds >= settings.least_run_seconds or not self.can_wait:
            return False
        room_comes = min(_ends_in(victim), self.room_in) <= self.spare
        return room_comes or not _weighs_more(victim, self.outlook, self.spare)


class RoomAhead:
    """When the predicted ends of jobs that have tasks leave room for one claim after the other.

    Jobs with claims keep what they have until those are met, and end, too.
    """

    def __init__(self, competing: Sequence[Outlook], lacking: Sequence[Outlook], capacity: Resources) -> None:
        """`lacking`: those whose claims are asked for, in this order."""
        running, grow = [one for one in competing if one.has_tasks], {one.id for one in lacking}
        held = sum((one.demand(one.present) for one in running if one.id not in grow), Resources())
        self._available, self._needed, self._until = remaining(capacity, held), Resources(), 0.0
        ending = ((_ends_in(one), one.demand(one.present)) for one in running if one.id not in grow)
        self._ends = iter(sorted(ending, key=itemgetter(0)))

    def seconds_until(self, demand: Resources) -> float:
        """Until there is room for so much more, beside what was asked for before; infinite: no end leaves it."""
        self._needed = self._needed + demand
        while not self._needed.fits_in(self._available):
            self._until, freed = next(self._ends, (math.inf, None))
            if freed is None:
                break
            self._available = self._available + freed
        return self._until


def loses_more(victim: Outlook, claiming: Claiming) -> bool:
    """Whether a pause loses more than the claim gains by it, in seconds of the same room, weighed with priorities.

    Lost is what it has trained since it began, which it would have to train again. Gained is that the claim is met
    before its end, and not after it: nothing where it would still be in time with the room that comes without a pause.
    """
    if not victim.has_tasks or victim.job.unsaved_seconds <= 0:
        return False
    return min(_ends_in(victim), claiming.room_in) <= claiming.slack or _weighs_more(victim, claiming.outlook, 0.0)


def _weighs_more(victim: Outlook, claiming: Outlook, after: float) -> bool:
    """Whether, `after` so many seconds, the work that a pause loses is worth more than the time that it saves."""
    made = victim.job.unsaved_seconds
    if made <= 0:
        return False
    seconds = victim.remaining_seconds(victim.present)
    left = max(seconds - after, 0.0) if math.isfinite(_ends_in(victim)) else seconds
    return (made + after) * victim.job.spec.priority > left * claiming.job.spec.priority


def _ends_in(running: Outlook) -> float:
    """Seconds until it ends with what it has; infinite: not known."""
    is_known = running.forecast.remaining_steps is not None or running.is_told
    return running.remaining_seconds(running.present) if is_known else math.inf


def _slack(claiming: Outlook, size: Allocation, now: float, margin: float, believed: float) -> float:
    """Seconds after which a job that has `size` from then on still meets its deadline. `believed`: how many seconds it
    takes where nothing tells them. Its steps are `margin` times the predicted ones."""
    deadline, steps = claiming.job.spec.deadline_at, claiming.forecast.remaining_steps
    if deadline is None:
        return -math.inf
    meanwhile = 0.0  # part of its speed that it trains with until then
    if steps is None or claiming.speeds.source is None:
        if claiming.has_tasks:
            return -math.inf
        needed = most_by_alike_runs(claiming) if steps is None else margin * claiming.typical_seconds
        needed = believed if needed is None else needed
    else:
        speed = claiming.speeds.at(size)
        needed = margin * steps.mean / speed
        meanwhile = claiming.speeds.at(claiming.present) / speed if claiming.has_tasks else 0.0
    left = deadline - now - claiming.stop_seconds - needed
    return left / (1.0 - meanwhile) if left > 0 and meanwhile < 1.0 else min(left, 0.0)


def assumed_seconds(claiming: Outlook, settings: Settings) -> float | None:
    """How long a job that waits is taken to train of which nothing tells that; None: something does."""
    steps = claiming.forecast.remaining_steps
    if claiming.is_told or (steps is not None and claiming.speeds.source is not None):
        return None
    if steps is None and most_by_alike_runs(claiming) is not None:
        return None
    return settings.deadline_margin * claiming.typical_seconds


_LEAST_WAIT_SECONDS = 1.0
"""No round comes sooner after another to look again."""


def _all_covered(grants: Grants, claims: Claims) -> bool:
    return all(covers(grants[job_id].allocation, claim) for job_id, claim in claims.items())


def demand_of(outlooks: Sequence[Outlook], sizes: Mapping[str, Allocation]) -> Resources:
    """What the jobs hold together with these sizes."""
    return sum((one.demand(sizes[one.id]) for one in outlooks if one.id in sizes), Resources())


def smaller(one: Resources, other: Resources) -> Resources:
    """The smaller amount of each resource."""
    gpus = {gpu_type: min(count, other.gpus.get(gpu_type, 0)) for gpu_type, count in one.gpus.items()}
    return Resources(min(one.cpu, other.cpu), min(one.memory_bytes, other.memory_bytes), gpus)


def fitting_claims(outlooks: Sequence[Outlook], claims: Claims, available: Resources) -> dict[str, Allocation]:
    """Those claims that fit in `available`, taken in the order of `outlooks`."""
    kept: dict[str, Allocation] = {}
    for outlook in outlooks:
        claim = claims.get(outlook.id)
        if claim is not None and outlook.demand(claim).fits_in(available):
            kept[outlook.id] = claim
            available = available - outlook.demand(claim)
    return kept


def covers(size: Allocation, claim: Allocation) -> bool:
    """Whether a job with `size` has what it claims."""
    return size.workers >= claim.workers and size.servers >= claim.servers


def _as_claimed(outlook: Outlook, claim: Allocation) -> Grant:
    return Grant(claim, Reason.UNCHANGED if claim == outlook.present else Reason.GRANTED_MORE)


def _admitted(
    others: Sequence[Outlook], available: Resources, grants: Mapping[str, Grant], settings: Settings
) -> tuple[list[Outlook], list[Outlook]]:
    """Jobs whose minima fit in `available` together, and those that are left out."""
    kept, out, blocked = [], [], False
    for outlook in sorted(others, key=_order(grants)):
        need = outlook.demand(outlook.minimum)
        if need.fits_in(available) and not (blocked and not outlook.has_tasks):
            kept.append(outlook)
            available = available - need
        else:
            out.append(outlook)
            blocked |= not outlook.has_tasks and outlook.waited_seconds > settings.patience_seconds
    return kept, out


def _order(grants: Mapping[str, Grant]) -> Callable[[Outlook], tuple[bool, bool, float, float, float, str]]:
    def key(outlook: Outlook) -> tuple[bool, bool, float, float, float, str]:
        job = outlook.job
        since = job.started_at if outlook.has_tasks and job.started_at is not None else job.submitted_at
        waits = grants[outlook.id].allocation.is_empty
        lost = job.unsaved_seconds if outlook.has_tasks else 0.0
        return (not outlook.has_tasks, waits and not outlook.has_tasks, -job.spec.priority, -lost, since, outlook.id)

    return key
