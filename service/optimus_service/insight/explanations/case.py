"""What an explanation is made of: rows, and what was tried."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optimus_scheduler.allocate.optimus.guarantees import Turn
from optimus_scheduler.model import Allocation, Decision, Quota
from optimus_scheduler.what_if import NO_END_TRIED, Behind, WithOneEnd
from optimus_service.insight.explanations.queue import Queued
from optimus_service.observe.standstills import Standstills
from optimus_service.observe.unsaved_work import LastStep
from optimus_service.store.records import DecisionRecord, JobRecord, MembershipRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that an explanation is made of."""

    job: JobRecord
    decision: DecisionRecord | None
    now: float
    newest_round: int | None = None
    """The number of that which came last; None: none has."""
    memberships: Sequence[MembershipRecord] = ()
    """Oldest first."""
    sizes_given: Sequence[tuple[float, Allocation]] = ()
    """When decisions gave it another size, and which; oldest first, from the oldest that is kept."""
    began: Mapping[str, float] = field(default_factory=dict)
    """When tasks were started, by name, of a script whose stops lose work."""
    starts: Sequence[float] = ()
    """When workers of an ended job were started."""
    last_steps: Mapping[int, LastStep] = field(default_factory=dict)
    """Membership epoch → the last of its steps."""
    n_figures: Mapping[str, int] = field(default_factory=dict)
    """How many losses are known, and how many values of the metric that it waits for, by `loss` and its name; those
    that are not in here are many."""
    others: Mapping[str, JobRecord] = field(default_factory=dict)
    """All active jobs by id that the reader may know of, this one among them or not."""
    decisions: Mapping[str, DecisionRecord] = field(default_factory=dict)
    """The latest of each of these."""
    queue: Sequence[Queued] = ()
    """All jobs that wait (`in_queue`)."""
    gives_more: Sequence[str] | None = None
    """What each alone would give it more, tried by planning again; None: not tried."""
    loses_to: Allocation | None = None
    """What the next round would leave it, as things are now, where that is less than it has: then `gives_more` is what
    each alone would let it keep what it has."""
    behind: Behind | None = None
    """Whom it comes after, where nothing but the ends of other jobs gives it more."""
    with_one_end: WithOneEnd = NO_END_TRIED
    """Who else that waits would start with the end of one job with tasks, or would not."""
    decided_now: Decision | None = None
    """What the next round would decide for it, by what is measured now."""
    kept_on_larger_cluster: str | None = None
    """Why it would keep its size with more room, too, in a sentence; None: not known."""
    troubles: Sequence[str] = ()
    """What keeps its tasks from running, as the cluster says."""
    warnings: Sequence[str] = ()
    awaits_answer: bool = False
    """Whether these say until when a task that does not answer is waited for."""
    """What hinders its training: the newest such events."""
    still: Standstills = field(default_factory=dict)
    """Jobs that make no step now."""
    speed: float | None = None
    """Of its newest steps with what it has (`speed_here`), where its forecast knows nothing of these."""
    silence_at_its_end: str | None = None
    """That no step came for long before it failed or was cancelled, in the words of `still`; None: steps came, or it
    had no tasks."""
    policy: str = ""
    """The name of the policy in force."""
    quotas: Sequence[Quota] = ()
    """Of all projects, for a reader who may know of all of them."""
    may_have_two: bool = True
    """Whether a job like it with two workers would be accepted: the cluster and its project's quota may hold them."""
    may_borrow: bool = True
    """Whether its project may have more than its quota."""
    turn: Turn | None = None
    """From when on no other job starts before this one, which waits; None: its policy knows of no such time."""
    seconds_paid: float = math.inf
    """How long what is left of its limit of money pays (`seconds_paid`); inf: it has no such limit."""
    errors: Sequence[float] = ()
    """When errors of its owner's code ended its training, after each of which it was tried again."""
    ends: Sequence[float] = ()
    """When it failed or was cancelled, the last time and all times before, after which its owner resumed it."""
    held_by: Sequence[str] = ()
    """Jobs whose tasks, that are being stopped, are on the nodes where those that it has been given are to start."""
