"""Who waits for tasks, in the order of the starts that are told. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from optimus_contract import answers
from optimus_service.insight.progress import Ends, start_of
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
) -> list[Queued]:
    """Those of the active jobs that wait, the one that is expected to start first at the top. Those that are expected
    at about the same time are in the order of their priorities, then of their age, and so are those of which no start
    is told, which come last. Not tracked jobs, nor those that their owner paused."""
    waiting = [job for job in active if job.waits]
    ends: Ends = {}
    starts = {job.id: start_of(job, decisions.get(job.id), now, ends, still) for job in waiting}
    waiting = _by_start(waiting, starts)
    return [Queued(number, job, decisions.get(job.id), starts[job.id]) for number, job in enumerate(waiting, 1)]


_ABOUT_THE_SAME = 0.1
"""Starts that differ by less than this part of their interval: about the standard error of the median of the futures
that they come from."""


def _by_start(waiting: Iterable[JobRecord], starts: Mapping[str, answers.Interval | None]) -> list[JobRecord]:
    found: list[list[JobRecord]] = []
    same_until = -math.inf
    for job in sorted(waiting, key=lambda job: _start(starts[job.id])[0]):
        start, doubt = _start(starts[job.id])
        if start > same_until:
            found.append([])
            same_until = start + doubt
        found[-1].append(job)
    return [
        job for same in found for job in sorted(same, key=lambda job: (-job.asked.priority, job.created_at, job.id))
    ]


def _start(start: answers.Interval | None) -> tuple[float, float]:
    """Seconds until it, and by how many it is doubtful."""
    if start is None:
        return math.inf, 0.0
    doubt = 0.0 if start.low is None or start.high is None else _ABOUT_THE_SAME * (start.high - start.low)
    return start.mean, doubt if math.isfinite(doubt) else 0.0


# --- In which order policies let waiting jobs start, in words --------------------------------------------------------

ORDERS: Mapping[str, str] = {
    "optimus": "those that are soon done and have a high priority come first, and before all one that has waited too "
    "long",
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
