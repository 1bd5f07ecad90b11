"""Statements about telemetry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    Connection,
    FromClause,
    Insert,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Session

from optimus_contract.limits import MAX_SAMPLES_PER_POST
from optimus_scheduler.model import Directive, JobState
from optimus_service.store.database.dialects import chunks, insert_for_dialect, is_postgresql
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import Base, Json, SampleBlockRow, join_float, split_float
from optimus_service.store.errors import InvalidValue, JobNotFound
from optimus_service.store.records import AddedSamples, IgnoredSample, PostedSamples, SampleBatch, SampleRecord
from optimus_service.store.samples.counting import (
    ALL_COUNTED,
    BLOCKS_KEPT,
    Block,
    Counted,
    EpochBounds,
    Progress,
    advance_progress,
    blocks_of,
    mark,
    sort_out,
)
from optimus_service.store.samples.sample_documents import pack, unpack

_JOBS: Final = Base.metadata.tables["jobs"]
_BATCHES: Final = Base.metadata.tables["sample_batches"]
_BLOCKS: Final = Base.metadata.tables["sample_blocks"]
_MEMBERSHIPS: Final = Base.metadata.tables["memberships"]
_KEYS_AT_ONCE: Final = 2000
"""Of four parameters each: PostgreSQL allows 65,535 in one statement."""

# Made once: making a statement of SQLAlchemy anew costs more than the database takes to carry it out.
_JOB_IDS: Final[BindParameter[list[str]]] = bindparam("job_ids", expanding=True)
_LIMIT: Final = bindparam("limit", type_=BigInteger)
_PROGRESS: Final = ("step", "step_at", "first_step", "epoch", "loss", "loss_kind", "n_samples")
_LOCK: Final = (
    select(*(_JOBS.c[name] for name in ("id", "state", "directive", "heard_at", *_PROGRESS)))
    .where(_JOBS.c.id.in_(_JOB_IDS))
    .order_by(_JOBS.c.id)
    .with_for_update(key_share=True)
)
_REPORTED: Final = select(*(_MEMBERSHIPS.c[name] for name in ("job_id", "epoch", "step", "n_workers"))).where(
    _MEMBERSHIPS.c.job_id.in_(_JOB_IDS)
)
_ORIGIN: Final = (_BLOCKS.c.job_id, _BLOCKS.c.membership_epoch, _BLOCKS.c.rank)
_NEWEST_BLOCKS: Final = (
    select(*_ORIGIN, func.max(_BLOCKS.c.number)).where(_BLOCKS.c.job_id.in_(_JOB_IDS)).group_by(*_ORIGIN)
)
_INSERT: Final = insert(_BATCHES)
_NEW_PROGRESS: Final[dict[str, Any]] = {name: bindparam(f"new_{name}") for name in _PROGRESS}
_UPDATE: Final = update(_JOBS).where(_JOBS.c.id == bindparam("of")).values(**_NEW_PROGRESS, version=_JOBS.c.version + 1)


class Samples(Subject):
    """Telemetry."""

    def add(self, posts: Sequence[PostedSamples]) -> list[AddedSamples | JobNotFound | InvalidValue]:
        """Count the samples that are new and belong to the histories of their jobs, in one transaction; of each post,
        the others:

        * `duplicate`: (membership_epoch, rank, sequence) was counted before, or stands earlier in this post.
        * `unknown_membership`: the epoch is above the newest reported one + 1 (one ahead may come before its report).
        * `old_membership`: the epoch has ended and the sample reaches beyond the step at which a later epoch began
          (these steps were rolled back), or the rank is not in that membership; or all have ended, as the job that ran
          elsewhere did, or is cancelled: the training may go on there.

        Updates each job's `step` (never decreases here), `first_step`, `epoch` and `loss`. Acknowledged samples survive
        a killed process; see `store.database.engine` for what a power cut may lose. A post that cannot be stored
        keeps no other one from it. When this raises, nothing was stored of any.
        """
        with self._write() as session:
            return add(session, posts)

    def after_each(self, after_ids: Mapping[str, int], limit: int) -> dict[str, list[SampleBatch]]:
        """For each of these jobs the samples with an id above the given one, by id: `limit` or fewer for each, and what
        came in one post with the last of them.

        Reading on from the last id misses none. One statement, however many jobs there are. Jobs without such samples
        are left out.
        """
        with self._read() as session:
            if not after_ids:
                return {}
            for_postgresql = is_postgresql(session)
            known = (
                {"ids": list(after_ids), "lasts": list(after_ids.values())}
                if for_postgresql
                else {"known": dict(after_ids)}
            )
            return _batches(session, _after_each(for_postgresql), {**known, "limit": limit})

    def newest_of_each(self, job_ids: Collection[str], limit: int) -> dict[str, list[SampleRecord]]:
        """The last samples of each of these jobs, newest first, `limit` at most for each; one statement."""
        with self._read() as session:
            return newest_of_each(session, job_ids, limit)

    def newest(self, job_id: str, limit: int) -> list[SampleRecord]:
        """The last samples of a job that were counted, newest first."""
        with self._read() as session:
            return newest(session, job_id, limit)


@cache
def _blocks_by_key(for_postgresql: bool) -> Select[Any]:
    """The rows of some blocks. `keys`: job, membership epoch, rank and number of each."""
    wanted = select(*_BLOCKS.primary_key, _BLOCKS.c.bits, _BLOCKS.c.max_step)
    if for_postgresql:
        return wanted.where(tuple_(*_BLOCKS.primary_key).in_(bindparam("keys", expanding=True)))
    # SQLite looks a list of tuples up in no index. One document is one parameter, too.
    key = func.json_each(bindparam("keys", type_=Json())).table_valued("value", name="key")
    parts = (func.json_extract(key.c.value, f"$[{number}]") for number in range(4))
    same = (column == part for column, part in zip(_BLOCKS.primary_key, parts, strict=True))
    return wanted.select_from(key).join(_BLOCKS, and_(*same))


@cache
def _upsert_blocks(for_postgresql: bool) -> Insert:
    statement = insert_for_dialect(SampleBlockRow, for_postgresql)
    new = {"bits": statement.excluded.bits, "max_step": statement.excluded.max_step}
    return statement.on_conflict_do_update(index_elements=list(_BLOCKS.primary_key), set_=new)


Added = AddedSamples | JobNotFound | InvalidValue
"""What became of a post: those that cannot be stored do not keep others from being stored."""


@dataclass(slots=True)
class _Job:
    """What a transaction knows of a job that samples came of."""

    progress: Progress
    step_at: float | None
    n_samples: int
    reported: dict[int, EpochBounds]
    blocks: dict[Block, Counted]
    is_watched: bool
    """Of a tracked job: whether it has neither ended nor is cancelled. True of all others, whose tasks are stopped."""
    is_changed: bool = False


def add(session: Session, posts: Sequence[PostedSamples]) -> list[Added]:
    """See `Samples.add`.

    The jobs' rows are locked, in one order, before ids are given out. So the ids of one job become visible in their
    order, and a reader can go on from the last one it saw.
    """
    connection = session.connection()
    jobs = _locked(connection, {post.job_id for post in posts})
    _load_blocks(connection, posts, jobs)
    batches: list[dict[str, Any]] = []
    answers = [_count(post, jobs.get(post.job_id), batches) for post in posts]
    if batches:
        connection.execute(_INSERT, batches)
        connection.execute(_upsert_blocks(is_postgresql(session)), _block_rows(jobs))
        connection.execute(_UPDATE, _progress_rows(jobs))
    return answers


def _locked(connection: Connection, job_ids: Collection[str]) -> dict[str, _Job]:
    """Those of these jobs that there are, kept from other writers."""
    found: dict[str, _Job] = {}
    for chunk in chunks(job_ids):
        rows = connection.execute(_LOCK, {"job_ids": chunk})
        for job_id, state, directive, heard_at, step, step_at, first_step, epoch, loss, loss_kind, n_samples in rows:
            progress = Progress(step, first_step, epoch, join_float(loss, loss_kind))
            is_watched = heard_at is None or not (JobState(state).is_final or directive == Directive.CANCEL)
            found[job_id] = _Job(progress, step_at, n_samples, {}, {}, is_watched)
        for job_id, membership_epoch, step, n_workers in connection.execute(_REPORTED, {"job_ids": chunk}):
            if job_id in found:
                found[job_id].reported[membership_epoch] = EpochBounds(step, n_workers)
    return found


def _load_blocks(connection: Connection, posts: Sequence[PostedSamples], jobs: Mapping[str, _Job]) -> None:
    known = [post for post in posts if post.job_id in jobs]
    blocks = sorted({(post.job_id, block) for post in known for block in blocks_of(post.columns)})
    for job_id, block in blocks:
        jobs[job_id].blocks[block] = Counted()
    wanted = [(job_id, *block) for job_id, block in blocks]
    statement = _blocks_by_key(connection.dialect.name == "postgresql")
    for first in range(0, len(wanted), _KEYS_AT_ONCE):
        rows = connection.execute(statement, {"keys": wanted[first : first + _KEYS_AT_ONCE]})
        for job_id, epoch, rank, number, bits, max_step in rows:
            jobs[job_id].blocks[Block(epoch, rank, number)] = Counted(int.from_bytes(bits, "little"), max_step)
    _mark_forgotten(connection, jobs, {job_id for job_id, block in blocks if not jobs[job_id].blocks[block].bits})


def _mark_forgotten(connection: Connection, jobs: Mapping[str, _Job], job_ids: Collection[str]) -> None:
    """Of blocks that have no row, these jobs' are new, or their rows were deleted because later ones followed."""
    for chunk in chunks(job_ids):
        newest = {tuple(key): number for *key, number in connection.execute(_NEWEST_BLOCKS, {"job_ids": chunk})}
        for job_id in chunk:
            for block, counted in jobs[job_id].blocks.items():
                last = newest.get((job_id, block.membership_epoch, block.rank), 0)
                if not counted.bits and block.number + BLOCKS_KEPT <= last:
                    counted.bits = ALL_COUNTED


def _count(post: PostedSamples, job: _Job | None, batches: list[dict[str, Any]]) -> Added:
    """Count what is new of the post, in what is known of its job, and add to `batches` the row to be stored."""
    if job is None:
        return JobNotFound(post.job_id)
    if not job.is_watched:
        return AddedSamples(0, tuple(IgnoredSample(index, "old_membership") for index in range(len(post.columns))))
    found = sort_out(post.columns, job.reported, job.blocks)
    ignored = tuple(IgnoredSample(index, why) for index, why in found.ignored.items())
    if not found.counted:
        return AddedSamples(0, ignored)
    columns = post.columns if not ignored else post.columns.taken(found.counted)
    try:
        document = pack(columns)
    except InvalidValue as error:
        return error
    mark(columns, job.blocks)
    before, job.progress = job.progress.step, advance_progress(job.progress, columns)
    if job.progress.step > before:
        job.step_at = post.received_at
    job.n_samples += len(columns)
    job.is_changed = True
    row = {"job_id": post.job_id, "last_id": job.n_samples, "n_samples": len(columns)}
    batches.append(row | {"received_at": post.received_at, "document": document})
    return AddedSamples(len(columns), ignored)


def _block_rows(jobs: Mapping[str, _Job]) -> list[dict[str, Any]]:
    return [
        {"job_id": job_id, **block._asdict(), "bits": _bytes(counted.bits), "max_step": counted.max_step}
        for job_id, job in jobs.items()
        for block, counted in job.blocks.items()
        if job.is_changed and counted.bits
    ]


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _progress_rows(jobs: Mapping[str, _Job]) -> list[dict[str, Any]]:
    return [_progress_row(job_id, job) for job_id, job in jobs.items() if job.is_changed]


def _progress_row(job_id: str, job: _Job) -> dict[str, Any]:
    loss, loss_kind = split_float(job.progress.loss)
    return {
        "of": job_id,
        "new_step": job.progress.step,
        "new_step_at": job.step_at,
        "new_first_step": job.progress.first_step,
        "new_epoch": job.progress.epoch,
        "new_loss": loss,
        "new_loss_kind": loss_kind,
        "new_n_samples": job.n_samples,
    }


# --- the one way to read them ----------------------------------------------------------------------------------------


def newest(session: Session, job_id: str, limit: int) -> list[SampleRecord]:
    """See `Samples.newest`."""
    return newest_of_each(session, [job_id], limit).get(job_id, [])


def newest_of_each(session: Session, job_ids: Collection[str], limit: int) -> dict[str, list[SampleRecord]]:
    """See `Samples.newest_of_each`."""
    found = _batches(session, _newest_of_each(is_postgresql(session)), {"job_ids": list(job_ids), "limit": limit})
    return {id_: [each for batch in batches for each in batch.records()][::-1] for id_, batches in found.items()}


@cache
def _newest_of_each(for_postgresql: bool) -> Select[Any]:
    before_them = (_JOBS.c.n_samples - _LIMIT).label("value")
    known = select(_JOBS.c.id.label("key"), before_them).where(_JOBS.c.id.in_(_JOB_IDS)).subquery("known")
    return _after(known, for_postgresql)


@cache
def _after_each(for_postgresql: bool) -> Select[Any]:
    if for_postgresql:
        parts = bindparam("ids", type_=ARRAY(Text)), bindparam("lasts", type_=ARRAY(BigInteger))
        known = func.unnest(*parts).table_valued("key", "value", name="known").render_derived()
    else:
        known = func.json_each(bindparam("known", type_=Json())).table_valued("key", "value", name="known")
    return _after(known, for_postgresql)


def _after(known: FromClause, for_postgresql: bool) -> Select[Any]:
    """One statement for all jobs: for each a look into the index. `known`: jobs (`key`) and sample ids (`value`)."""
    statement = _reached(known)
    # LATERAL, because a join might be planned as a walk through all samples
    return select(statement.lateral()).select_from(known) if for_postgresql else statement


def _batches(session: Session, statement: Select[Any], given: Mapping[str, Any]) -> dict[str, list[SampleBatch]]:
    found: dict[str, list[SampleBatch]] = {}
    for row in sorted(session.execute(statement, given), key=lambda row: (row.job_id, row.last_id)):
        batch = SampleBatch(row.last_id - row.n_samples + 1, row.received_at, unpack(row.document))
        found.setdefault(row.job_id, []).append(batch.after(row.after_id))
    return found


def _reached(known: FromClause) -> Select[Any]:
    """Posts with any of the `limit` samples after the known one: they end at most one post later."""
    last_id, first_id = _BATCHES.c.last_id, _BATCHES.c.last_id - _BATCHES.c.n_samples + 1
    after = cast(known.c.value, BigInteger)
    bounds = last_id > after, last_id < after + _LIMIT + MAX_SAMPLES_PER_POST, first_id <= after + _LIMIT
    return select(_BATCHES, after.label("after_id")).where(_BATCHES.c.job_id == known.c.key, *bounds)
