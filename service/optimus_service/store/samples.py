"""Statements about telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from optimus_service.store.columns import join_float, split_float
from optimus_service.store.counting import (
    EpochBounds,
    Progress,
    SampleKey,
    advance_progress,
    split_repeats,
)
from optimus_service.store.dialects import insert_for
from optimus_service.store.jobs import locked
from optimus_service.store.records import AddedSamples, IgnoredSample, Sample, SampleRecord
from optimus_service.store.tables import JobRow, MembershipRow, SampleRow

_PLAIN: Final = tuple(field.name for field in fields(Sample) if field.name != "loss")
"""Fields that are columns of the same name."""


def add(session: Session, job_id: str, samples: Sequence[Sample], now: float) -> AddedSamples:
    """See `Repository.add_samples`.

    The job's row is locked before ids are given out. So the ids of one job become visible in their order, and
    `after` can go on from the last one it saw.
    """
    row = locked(session, job_id)
    candidates, ignored = split_repeats(samples, _reported(session, job_id))
    counted = _insert_new(session, job_id, [samples[index] for index in candidates.values()], now)
    ignored |= {index: "duplicate" for key, index in candidates.items() if key not in counted}
    _store_progress(row, [samples[candidates[key]] for key in counted])
    answers = tuple(IgnoredSample(index, why) for index, why in sorted(ignored.items()))
    return AddedSamples(len(counted), answers)


def _reported(session: Session, job_id: str) -> dict[int, EpochBounds]:
    statement = select(MembershipRow.epoch, MembershipRow.step, MembershipRow.n_workers)
    rows = session.execute(statement.where(MembershipRow.job_id == job_id))
    return {epoch: EpochBounds(step, n_workers) for epoch, step, n_workers in rows}


def _insert_new(session: Session, job_id: str, samples: Sequence[Sample], now: float) -> set[SampleKey]:
    """Insert those samples whose key is new, in batches as large as the database takes; their keys."""
    if not samples:
        return set()
    statement = (
        insert_for(session, SampleRow)
        .on_conflict_do_nothing(index_elements=["job_id", "membership_epoch", "rank", "sequence"])
        .returning(SampleRow.membership_epoch, SampleRow.rank, SampleRow.sequence)
    )
    rows = session.execute(statement, [_values(job_id, sample, now) for sample in samples])
    return {(epoch, rank, sequence) for epoch, rank, sequence in rows}


def _values(job_id: str, sample: Sample, now: float) -> dict[str, Any]:
    loss, loss_kind = split_float(sample.loss)
    values: dict[str, Any] = {name: getattr(sample, name) for name in _PLAIN}
    return values | {"job_id": job_id, "received_at": now, "loss": loss, "loss_kind": loss_kind}


def _store_progress(row: JobRow, counted: Sequence[Sample]) -> None:
    before = Progress(row.step, row.first_step, row.epoch, join_float(row.loss, row.loss_kind))
    after = advance_progress(before, counted)
    row.step, row.first_step, row.epoch = after.step, after.first_step, after.epoch
    row.loss, row.loss_kind = split_float(after.loss)


def after(session: Session, job_id: str, after_id: int, limit: int) -> list[SampleRecord]:
    """See `Repository.samples_after`."""
    statement = select(SampleRow).where(SampleRow.job_id == job_id, SampleRow.id > after_id)
    return [_record(row) for row in session.scalars(statement.order_by(SampleRow.id).limit(limit))]


def newest(session: Session, job_id: str, limit: int) -> list[SampleRecord]:
    """See `Repository.newest_samples`."""
    statement = select(SampleRow).where(SampleRow.job_id == job_id).order_by(SampleRow.id.desc()).limit(limit)
    return [_record(row) for row in session.scalars(statement)]


def _record(row: SampleRow) -> SampleRecord:
    loss = join_float(row.loss, row.loss_kind)
    assert loss is not None, "every sample has a loss"
    values: dict[str, Any] = {name: getattr(row, name) for name in _PLAIN}
    return SampleRecord(id=row.id, received_at=row.received_at, loss=loss, **values)
