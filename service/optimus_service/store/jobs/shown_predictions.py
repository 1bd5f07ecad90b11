"""Statements about what was predicted of jobs: kept apart from decisions, which are many and are deleted some day."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from optimus_scheduler.model import JobState
from optimus_service.store.database.dialects import chunks, insert_for
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import JobRow, PredictionRow
from optimus_service.store.jobs.rows import ACTIVE_STATES, in_projects, locked_together
from optimus_service.store.records import EndedPrediction, PredictionRecord, PromisedDeadline
from optimus_service.store.rounds import forecasts, history

DEADLINE_PROMISED = "DeadlinePromised"


class ShownPredictions(Subject):
    """What was predicted of jobs and is judged by their ends, in the table `promises`."""

    def parts_of(self, job_ids: Collection[str]) -> dict[str, set[str]]:
        """The parts of their lives at which something was predicted of these jobs; jobs without any are left out."""
        with self._read() as session:
            found: dict[str, set[str]] = {}
            for job_id, part in session.execute(
                select(PredictionRow.job_id, PredictionRow.part).where(PredictionRow.job_id.in_(job_ids))
            ):
                found.setdefault(job_id, set()).add(part)
            return found

    def of_job(self, job_id: str) -> list[PredictionRecord]:
        """What was predicted of one job at the parts of its life, in no order."""
        with self._read() as session:
            return [
                _record(row) for row in session.scalars(select(PredictionRow).where(PredictionRow.job_id == job_id))
            ]

    def ended(self, since: float, newest: int, projects: Collection[str] | None = None) -> list[EndedPrediction]:
        """The `newest` predictions of jobs (of these projects; None: of all) that succeeded at `since` or later, the
        first to end first."""
        with self._read() as session:
            statement = (
                select(PredictionRow, JobRow.step, JobRow.finished_at, JobRow.started_at)
                .join(JobRow, JobRow.id == PredictionRow.job_id)
                .where(JobRow.finished_at >= since, JobRow.state == JobState.SUCCEEDED.value, *in_projects(projects))
                .order_by(JobRow.finished_at.desc(), PredictionRow.at.desc())
                .limit(newest)
            )
            found = reversed(session.execute(statement).all())
            return [_kept(row, step, end, start) for row, step, end, start in found if end is not None]


def add(session: Session, predictions: Sequence[PredictionRecord]) -> None:
    """See `Rounds.add_predictions`. What was predicted at a part before stays."""
    present: set[str] = set()
    for chunk in chunks(sorted({each.job_id for each in predictions})):
        present |= set(session.scalars(select(JobRow.id).where(JobRow.id.in_(chunk))))
    if rows := [_values(each) for each in predictions if each.job_id in present]:
        session.execute(insert_for(session, PredictionRow).on_conflict_do_nothing(), rows)


def _values(prediction: PredictionRecord) -> dict[str, Any]:
    said = ("steps", "seconds", "total_steps", "time", "start", "calibration")
    return {
        "job_id": prediction.job_id,
        "part": prediction.part,
        "task": prediction.task,
        "at": prediction.at,
        "document": {"step": prediction.step} | {name: forecasts.plain(getattr(prediction, name)) for name in said},
    }


def _kept(row: PredictionRow, step: int, finished_at: float, started_at: float | None) -> EndedPrediction:
    return EndedPrediction(prediction=_record(row), total_steps=step, finished_at=finished_at, started_at=started_at)


def _record(row: PredictionRow) -> PredictionRecord:
    said = row.document
    return PredictionRecord(
        job_id=row.job_id,
        part=row.part,
        task=row.task,
        at=row.at,
        step=said.get("step"),
        steps=forecasts.interval(said.get("steps")),
        seconds=forecasts.interval(said.get("seconds")),
        total_steps=forecasts.interval(said.get("total_steps")),
        time=forecasts.interval(said.get("time")),
        start=forecasts.interval(said.get("start")),
        calibration=forecasts.calibration(said.get("calibration")),
    )


def add_deadlines(session: Session, promised: Sequence[PromisedDeadline]) -> None:
    """See `Rounds.put_expected_times`."""
    rows = locked_together(session, [each.job_id for each in promised]) if promised else {}
    for each in promised:
        row = rows[each.job_id]
        if row.state not in ACTIVE_STATES or row.promised_deadline == each.deadline:
            continue
        row.promised_deadline, row.promised_at = each.deadline, each.at
        history.add_event(session, row.id, DEADLINE_PROMISED, each.words, {"deadline": each.deadline}, each.at)
