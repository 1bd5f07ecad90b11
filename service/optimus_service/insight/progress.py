"""What can be read off the rows of a job: progress, speed, explanation. Pure functions of rows and the time.

The forecast itself is the scheduler's; here it is only brought up to date with the steps made since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimus_contract import answers
from optimus_scheduler.model import NOTHING, Allocation, JobState
from optimus_scheduler.model.format import headline
from optimus_service.insight.reasons import text_of
from optimus_service.store.records import DecisionRecord, JobRecord, SampleRecord

SPEED_WINDOW_SECONDS = 30.0
"""A job's measured speed is an average over so long: steady enough to read, young enough to show a change."""


# --- numbers that JSON can say ---------------------------------------------------------------------------------------


def finite(value: float | None) -> float | None:
    """`value`, or None when it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def finite_document(value: Any) -> Any:
    """A JSON document with None in place of every number that is not finite."""
    match value:
        case float():
            return finite(value)
        case Mapping():
            return {name: finite_document(part) for name, part in value.items()}
        case list() | tuple():
            return [finite_document(part) for part in value]
        case _:
            return value


def interval(document: Mapping[str, Any] | None) -> answers.Interval | None:
    """An interval of a stored forecast; None when its mean is unknown or infinite."""
    if document is None or finite(document["mean"]) is None:
        return None
    return answers.Interval(mean=document["mean"], low=finite(document["low"]), high=finite(document["high"]))


# --- how far a job is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outlook:
    """How far a job is, and what is left by its latest forecast."""

    progress: float | None
    """0 to 1; None when nothing can be said."""
    remaining_steps: answers.Interval | None
    remaining_seconds: answers.Interval | None


def outlook(job: JobRecord, decision: DecisionRecord | None) -> Outlook:
    """The latest forecast, brought up to the job's present step. A job that ended has nothing left."""
    if job.state.is_final:
        return Outlook(1.0 if job.state is JobState.SUCCEEDED else _progress(job, decision), None, None)
    if decision is None:
        return Outlook(None, None, None)
    total = interval(decision.forecast.get("total_steps"))
    left = None if total is None else _mapped(total, lambda steps: max(steps - job.step, 0.0))
    speed = finite(decision.forecast.get("steps_per_second"))
    seconds = None if left is None or not speed else _mapped(left, lambda steps: steps / speed)
    return Outlook(_progress(job, decision), left, seconds)


def _progress(job: JobRecord, decision: DecisionRecord | None) -> float | None:
    total = None if decision is None else interval(decision.forecast.get("total_steps"))
    if total is None or total.mean <= 0:
        return None
    return min(job.step / total.mean, 1.0)


def _mapped(value: answers.Interval, change: Any) -> answers.Interval:
    low, high = (None if bound is None else change(bound) for bound in (value.low, value.high))
    return answers.Interval(mean=change(value.mean), low=low, high=high)


def measured_speed(newest: Sequence[SampleRecord], now: float) -> float | None:
    """Steps per second of the whole job over the last `SPEED_WINDOW_SECONDS`, from its newest samples (any order).

    None when it has not made a step in that time, or only one that cannot be timed.
    """
    recent = [sample for sample in newest if sample.received_at > now - SPEED_WINDOW_SECONDS]
    if not recent:
        return None
    # Steps of an earlier membership may have been rolled back, so speeds are not taken across a change.
    epoch = max(sample.membership_epoch for sample in recent)
    recent = [sample for sample in recent if sample.membership_epoch == epoch]
    first, last = (pick(recent, key=lambda sample: (sample.at, sample.step)) for pick in (min, max))
    if last.at > first.at and last.step > first.step:
        return (last.step - first.step) / (last.at - first.at)
    return last.n_steps / last.seconds if last.seconds > 0 else None


# --- why it has what it has ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has what it has, in words."""

    reason: str | None
    message: str
    what_would_change_it: str
    allocation: Allocation
    previous: Allocation


def explain(job: JobRecord, decision: DecisionRecord | None) -> Explanation:
    """The latest decision in words; what ended the job when it ended; what it waits for before the first round."""
    if job.state.is_final:
        message = f"The job {job.state.value}." if job.failure is None else f"The job failed: {headline(job.failure)}"
        again = "Submit it again to run it again."
        if job.state is not JobState.SUCCEEDED and job.step > 0:
            again = f"`optimus resume {job.id}` lets it go on from its last checkpoint."
        what = f"Nothing: it has ended. {again}"
        reason = None if decision is None else decision.reason
        return Explanation(reason, message, what, NOTHING, NOTHING)
    if decision is None:
        waits = "No scheduling round has looked at the job yet."
        return Explanation(None, waits, "The next scheduling round.", job.wanted, NOTHING)
    change = text_of(decision.reason).what_would_change_it
    return Explanation(decision.reason, decision.message, change, decision.allocation, decision.previous)
