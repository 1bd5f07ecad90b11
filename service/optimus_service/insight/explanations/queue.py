"""Who waits for tasks, in the order of the starts that are told. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from optimus_contract import answers
from optimus_contract.interval_words import interval_words
from optimus_scheduler.explain import GOES_FIRST
from optimus_service.insight.jobs.progress import Ends, start_of
from optimus_service.observe.spec import deadline_of
from optimus_service.observe.standstills import Standstills
from optimus_service.store.records import DecisionRecord, JobRecord


class Queued(NamedTuple):
    """A job that waits for tasks."""

    position: int
    """1 is expected to start first."""
    job: JobRecord
    decision: DecisionRecord | None
    start: answers.Interval | None
    """Seconds until it, as `progress_of` tells them: the queue is in the order of what is shown."""


def in_queue(
    active: Iterable[JobRecord],
    decisions: Mapping[str, DecisionRecord],
    now: float,
    still: Standstills = MappingProxyType({}),
    policy: str = "optimus",
) -> list[Queued]:
    """Those of the active jobs that wait, the one that is expected to start first at the top. Of those of which the
    same start is shown those come first that have waited so long that they go first, the one that waits longest at the
    top, then the others by `order_of_equals` of the policy in force; and so are those of which no start is told, which
    come last. Not tracked jobs, nor those that their owner paused."""
    waiting = [job for job in active if job.waits]
    ends: Ends = {}
    starts = {job.id: start_of(job, decisions.get(job.id), now, ends, still) for job in waiting}
    first = {job.id for job in waiting if goes_first(decisions.get(job.id))}
    waiting = _by_start(waiting, starts, first, policy)
    return [Queued(number, job, decisions.get(job.id), starts[job.id]) for number, job in enumerate(waiting, 1)]


def goes_first(decision: DecisionRecord | None) -> bool:
    """Whether the newest round lets no other job start before this one."""
    return decision is not None and GOES_FIRST in decision.message


def order_of_equals(policy: str) -> str:
    """By what those stand of which nothing tells who starts first, in words."""
    if policy in _BY_AGE:
        return "age"
    return "deadline and age" if policy in _BY_DEADLINE else "priority and age"


_BY_AGE = frozenset({"fifo", "drf", "max-min", "predictable"})
"""Policies that start the oldest first (`ORDERS`), whatever its priority ..."""
_BY_DEADLINE = frozenset({"edf", "elasticflow"})
"""... and those that start the one with the earliest deadline first."""


def _by_start(
    waiting: Iterable[JobRecord], starts: Mapping[str, answers.Interval | None], first: Container[str], policy: str
) -> list[JobRecord]:
    """Equal are starts that are equal as they are shown."""

    def before_age(job: JobRecord) -> float:
        if policy in _BY_AGE:
            return 0.0
        if policy in _BY_DEADLINE:
            due = deadline_of(job.asked, job.created_at)
            return math.inf if due is None else due
        return -job.asked.priority

    def rank(job: JobRecord) -> tuple[bool, float, float, str]:
        if job.id in first:
            return False, job.waits_since, job.created_at, job.id
        return True, before_age(job), job.created_at, job.id

    ordered = sorted(waiting, key=lambda job: _start(starts[job.id]))
    same = groupby(ordered, key=lambda job: _shown(starts[job.id]))
    return [job for _, jobs in same for job in sorted(jobs, key=rank)]


def _start(start: answers.Interval | None) -> float:
    return math.inf if start is None else start.mean


def _shown(start: answers.Interval | None) -> str | None:
    return None if start is None else interval_words(start.mean, start.low, start.high).mean


# --- In which order policies let waiting jobs start, in words --------------------------------------------------------

ORDERS: Mapping[str, str] = {
    "optimus": "first those that a deadline or a quota gives a right to start, and those that have waited too long; "
    "then those that are soon done or have a high priority, and as far as it is in doubt how long they take, those "
    "that have had least so far; a small one may start where a larger one does not fit",
    "optimus-paper": "those to whom their first tasks save most time come first",
    "fifo": "the oldest comes first",
    "tiresias": "the one that has had least so far comes first",
    "drf": "each gets its minimum before any gets more, the oldest first",
    "max-min": "each gets its minimum before any gets more, the oldest first",
    "tetris": "those that pack well and are short come first",
    "predictable": "the oldest comes first, and one that is done before a gap is needed goes into it",
    "edf": "the one with the earliest deadline comes first",
    "elasticflow": "those whose deadlines can all be met come first, by deadline, then the oldest",
    "srtf": "the one with the shortest time left comes first",
}
"""By which order policies let waiting jobs start, in words."""
