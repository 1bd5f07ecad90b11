"""Step 5 of a round: what was decided, as rows."""

from __future__ import annotations

from optimus_scheduler.model import Decision, Plan
from optimus_service.store.records import DecisionRecord


def decision_records(plan: Plan, at: float) -> list[DecisionRecord]:
    """One row per decision."""
    return [_record(decision, at) for decision in plan.decisions]


def _record(decision: Decision, at: float) -> DecisionRecord:
    return DecisionRecord(
        job_id=decision.job_id,
        at=at,
        allocation=decision.allocation,
        previous=decision.previous,
        reason=decision.reason.value,
        message=decision.message,
        gain=decision.gain,
        next_gain=decision.next_gain,
        batch=decision.batch,
        forecast=decision.forecast,
    )
