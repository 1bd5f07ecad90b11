"""Step 5 of a round: what was decided, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from optimus_models.calibration import Calibration
from optimus_scheduler.model import Decision, Forecast, Interval, Plan
from optimus_service.store.records import DecisionRecord, Document


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
        forecast=forecast_document(decision.forecast),
    )


def forecast_document(forecast: Forecast) -> Document:
    """The forecast with the names of its fields; intervals as objects with mean, low and high."""
    return {field.name: _plain(getattr(forecast, field.name)) for field in fields(forecast)}


def _plain(value: Any) -> Any:
    match value:
        case Interval(mean=mean, low=low, high=high):
            return {"mean": mean, "low": low, "high": high}
        case Calibration():
            return {name: {"down": part.down, "up": part.up} for name, part in value._asdict().items()}
        case Mapping():
            return dict(value)
        case _:
            return value
