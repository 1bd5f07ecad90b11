"""Statements about telemetry."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import ARRAY, BigInteger, Select, Text, cast, func, select, true
from sqlalchemy.orm import Session, aliased

from optimus_contract.codec import AnyMessage, Unreadable, read, write
from optimus_contract.telemetry import Gradients, Sample, Usage
from optimus_service.store.counting import (
    EpochBounds,
    Progress,
    SampleKey,
    advance_progress,
    split_repeats,
)
from optimus_service.store.dialects import insert_for, is_postgresql
from optimus_service.store.jobs import locked
from optimus_service.store.records import AddedSamples, IgnoredSample, SampleRecord
from optimus_service.store.tables import JobRow, MembershipRow, SampleRow, join_float, split_float

_PLAIN: Final = tuple(
    field.name for field in fields(Sample) if field.name not in ("loss", "usage", "gradients", "metrics")
)
"""Fields that are columns of the same name and type."""
_NO_LOSS: Final = "none"
"""The kind of a sample without a loss."""


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
    loss_kind = loss_kind or _NO_LOSS
    values: dict[str, Any] = {name: getattr(sample, name) for name in _PLAIN}
    values |= {
        "usage": None if sample.usage is None else write(sample.usage, without_none=True),
        "gradients": None if sample.gradients is None else write(sample.gradients),
        "metrics": sample.metrics,
    }
    return values | {"job_id": job_id, "received_at": now, "loss": loss, "loss_kind": loss_kind}


def _store_progress(row: JobRow, counted: Sequence[Sample]) -> None:
    before = Progress(row.step, row.first_step, row.epoch, join_float(row.loss, row.loss_kind))
    after = advance_progress(before, counted)
    row.step, row.first_step, row.epoch = after.step, after.first_step, after.epoch
    row.loss, row.loss_kind = split_float(after.loss)


def newest(session: Session, job_id: str, limit: int) -> list[SampleRecord]:
    """See `Repository.newest_samples`."""
    statement = select(SampleRow).where(SampleRow.job_id == job_id).order_by(SampleRow.id.desc()).limit(limit)
    return [_record(row) for row in session.scalars(statement)]


def after_each(session: Session, after_ids: Mapping[str, int], limit: int) -> dict[str, list[SampleRecord]]:
    """See `Repository.samples_after_each`."""
    return _of_each(session, after_ids, limit)


def newest_of_each(session: Session, job_ids: Collection[str], limit: int) -> dict[str, list[SampleRecord]]:
    """See `Repository.newest_samples_of_each`."""
    return _of_each(session, dict.fromkeys(job_ids, 0), limit, newest_first=True)


def _of_each(
    session: Session, after_ids: Mapping[str, int], limit: int, *, newest_first: bool = False
) -> dict[str, list[SampleRecord]]:
    """One statement for all jobs: for each a look into the index, which ends after `limit` samples.

    The jobs are one parameter (an array, a document), as there is a limit to how many a statement has.
    """
    if not after_ids:
        return {}
    select_from_each = _select_lateral if is_postgresql(session) else _select_correlated
    statement = select_from_each(after_ids, limit, newest_first=newest_first)
    found: dict[str, list[SampleRecord]] = {}
    for row in session.scalars(statement):
        found.setdefault(row.job_id, []).append(_record(row))
    for records in found.values():
        records.sort(key=attrgetter("id"), reverse=newest_first)
    return found


def _select_lateral(after_ids: Mapping[str, int], limit: int, *, newest_first: bool) -> Select[SampleRow]:
    """PostgreSQL. LATERAL, because a join might be planned as a walk through all samples."""
    ids, lasts = cast(list(after_ids), ARRAY(Text)), cast(list(after_ids.values()), ARRAY(BigInteger))
    known = func.unnest(ids, lasts).table_valued("job_id", "last_id", name="known").render_derived()
    chosen = select(SampleRow).where(SampleRow.job_id == known.c.job_id, SampleRow.id > known.c.last_id)
    found = chosen.order_by(SampleRow.id.desc() if newest_first else SampleRow.id).limit(limit).lateral()
    return select(aliased(SampleRow, found)).select_from(known).join(found, true())


def _select_correlated(after_ids: Mapping[str, int], limit: int, *, newest_first: bool) -> Select[SampleRow]:
    """SQLite, which has no LATERAL."""
    known = func.json_each(json.dumps(dict(after_ids))).table_valued("key", "value", name="known")
    one = aliased(SampleRow)
    chosen = select(one.id).where(one.job_id == known.c.key, one.id > known.c.value)
    ids = chosen.order_by(one.id.desc() if newest_first else one.id).limit(limit).correlate(known)
    return select(SampleRow).select_from(known).join(SampleRow, SampleRow.id.in_(ids))


def _record(row: SampleRow) -> SampleRecord:
    loss = None if row.loss_kind == _NO_LOSS else join_float(row.loss, row.loss_kind)
    values: dict[str, Any] = {name: getattr(row, name) for name in _PLAIN}
    return SampleRecord(
        id=row.id,
        received_at=row.received_at,
        loss=loss,
        usage=_read(Usage, row.usage),
        gradients=_read(Gradients, row.gradients),
        metrics=row.metrics,
        **values,
    )


def _read(kind: type[AnyMessage], stored: object) -> AnyMessage | None:
    """None as well for what another release wrote in another way."""
    try:
        return None if stored is None else read(kind, stored)
    except Unreadable:
        return None
