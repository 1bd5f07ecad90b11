"""Which predictions users are told, by what tells them (`progress_of`): none is judged that nobody saw. Pure."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from optimus_service.insight.jobs.progress import Ends, progress_of
from optimus_service.observe.standstills import Standstills
from optimus_service.store.records import DecisionRecord, JobRecord, PredictionRecord


def as_told(
    made: PredictionRecord,
    job: JobRecord,
    decision: DecisionRecord | None,
    now: float,
    ends: Ends | None = None,
    still: Standstills = MappingProxyType({}),
    speed: float | None = None,
) -> PredictionRecord | None:
    """A prediction without what lists and explanations do not tell at that time; None: they tell nothing of it.

    `decision`, `ends`, `still`, `speed`: as `progress_of` takes them.
    """
    ahead = progress_of(job, decision, now, ends, still, speed)
    starts = ahead.expected is not None and ahead.expected.start_seconds is not None
    has_steps, has_end = ahead.remaining_steps is not None, ahead.remaining_seconds is not None
    told = replace(
        made,
        steps=made.steps if has_steps else None,
        total_steps=made.total_steps if has_steps else None,
        seconds=made.seconds if has_end or ahead.at_its_size is not None else None,
        time=made.time if has_end else None,
        start=made.start if starts else None,
    )
    return None if told.steps is told.seconds is told.time is told.start is None else told
