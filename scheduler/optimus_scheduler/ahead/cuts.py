"""Which jobs lose tasks to others along a trajectory, and for whom. Pure.

Rounds that are to come decide that anew, by what they measure until then: what one trajectory has is no prediction.
Told is only what all of them have, where there are several.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from optimus_scheduler.ahead.queue import ExpectedCut
from optimus_scheduler.allocate.policy import Grant, PatientPolicy, Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Interval
from optimus_scheduler.settings import Settings

DEADLINE, GUARANTEE, TURN, PRIORITY, SOONER, LESS = "deadline", "guarantee", "turn", "priority", "sooner", "less"
"""What a job is for which another loses tasks: it has a deadline; its project's quota guarantees it what it gets; it
has waited so long that none passes it; it has a higher priority; it is sooner done; it has trained less."""


class Seen(NamedTuple):
    """A job at the instant of a decision."""

    outlook: Outlook
    grant: Grant
    seconds_left: float
    """At its minimum; inf: nobody knows."""


class Cut(NamedTuple):
    """The first time that a job loses tasks."""

    at: float
    pauses: bool
    gainers: Mapping[int, str | None]
    """Places in the queue of those that get more then, and why it is they: those that start before others that grow."""


def why_for(gainer: Seen, loser: Seen, policy: Policy, settings: Settings) -> str | None:
    """What `gainer` is that `loser` is not, of what the policy goes by; None: none of it, or another policy."""
    got, lost = gainer.outlook.job, loser.outlook.job
    if gainer.grant.is_claimed:
        return DEADLINE if got.spec.deadline_at is not None else GUARANTEE
    if not isinstance(policy, PatientPolicy):
        return None
    if not gainer.outlook.has_tasks and policy.seconds_to_turn(gainer.outlook, settings) <= 0:
        return TURN
    if got.spec.priority > lost.spec.priority:
        return PRIORITY
    if gainer.seconds_left < loser.seconds_left < math.inf:
        return SOONER
    return LESS if got.attained_share_seconds < lost.attained_share_seconds else None


def agreed_cut(ids: Sequence[str], found: Sequence[Cut | None]) -> ExpectedCut | None:
    """What the trajectories have in common, of one job: `found` in each of them. None: they differ, or there is but
    one of them, by which nothing is told."""
    cuts = [each for each in found if each is not None]
    if len(found) < 2 or len(cuts) < len(found) or len({each.pauses for each in cuts}) > 1:
        return None
    common = set(cuts[0].gainers).intersection(*(each.gainers for each in cuts[1:]))
    gainer = next((each for each in cuts[0].gainers if each in common), None)
    if gainer is None:
        return None
    instants = sorted(each.at for each in cuts)
    reasons = {each.gainers[gainer] for each in cuts}
    at = Interval(sum(instants) / len(instants), instants[0], instants[-1])
    return ExpectedCut(at, cuts[0].pauses, ids[gainer], reasons.pop() if len(reasons) == 1 else None)


def freed_by(job: int, starts: Sequence[float], found: Sequence[Mapping[int, Cut]]) -> int | None:
    """The job that loses tasks at the very instant at which this one starts, for it, in all of several trajectories:
    `starts` and `found` in each. None: there is none."""
    if len(found) < 2:
        return None
    losers = Counter(
        loser
        for start, cuts in zip(starts, found, strict=True)
        for loser, cut in cuts.items()
        if cut.at == start and job in cut.gainers
    )
    return min((loser for loser, n in losers.items() if n == len(found)), default=None)
