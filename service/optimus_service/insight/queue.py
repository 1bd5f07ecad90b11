"""Who waits for tasks, in the order of the starts that are told. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from optimus_contract import answers
from optimus_scheduler.model import Directive
from optimus_service.insight.progress import Ends, progress_of
from optimus_service.observe.standstills import Standstills
from optimus_service.store.records import DecisionRecord, JobRecord


class Queued(NamedTuple):
    """A job that waits for tasks."""

    position: int
    """1 is expected to start first."""
    job: JobRecord
    decision: DecisionRecord | None
    expected: answers.ExpectedTimes | None
    """As `progress_of` tells it: the queue is in the order of what is shown."""


def in_queue(
    active: Iterable[JobRecord],
    decisions: Mapping[str, DecisionRecord],
    now: float,
    still: Standstills = MappingProxyType({}),
) -> list[Queued]:
    """Those of the active jobs that wait, the one that is expected to start first at the top; those of which no start
    is told come last, by priority and then by age. Not tracked jobs, nor those that their owner paused."""
    waiting = [job for job in active if job.waits and job.directive is not Directive.CANCEL]
    ends: Ends = {}
    expected = {job.id: progress_of(job, decisions.get(job.id), now, ends, still).expected for job in waiting}
    waiting.sort(key=lambda job: (_start(expected[job.id]), -job.asked.priority, job.created_at, job.id))
    return [Queued(number, job, decisions.get(job.id), expected[job.id]) for number, job in enumerate(waiting, 1)]


def _start(expected: answers.ExpectedTimes | None) -> float:
    return math.inf if expected is None or expected.start_seconds is None else expected.start_seconds.mean
