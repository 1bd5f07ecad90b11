"""The samples of one post in one row, and which were counted as bits: a row per sample was most of a post's cost.

Revision 0016, after 0017. Both ways keep every sample; their ids change.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0017"

_AT_ONCE = 1000
"""Samples in a row at most."""
_BLOCK = 4096
"""Sequence numbers of which a row of `sample_blocks` tells."""
_KEY = ("membership_epoch", "rank", "sequence")
_WHOLE = (*_KEY, "workers", "servers", "step", "n_steps", "n_examples", "sent_bytes", "received_bytes")
_MAYBE_WHOLE = ("updates", "global_batch")
_REAL = ("at", "data_epoch", "seconds", *(f"{part}_seconds" for part in ("data", "compute", "push", "wait", "pull")))
_MAYBE_REAL = ("learning_rate", "staleness")
_DOCUMENTS = ("metrics", "usage", "gradients")
_FIELDS = (*_WHOLE, *_MAYBE_WHOLE, *_REAL, *_MAYBE_REAL, *_DOCUMENTS)
_DEFAULTS: dict[str, Any] = {"n_steps": 1, "sent_bytes": 0, "received_bytes": 0}
_DEFAULTS |= {f"{part}_seconds": 0 for part in ("data", "compute", "push", "wait", "pull")}
_DEFAULTS |= dict.fromkeys((*_MAYBE_WHOLE, *_MAYBE_REAL, *_DOCUMENTS))

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_METADATA = sa.MetaData()
_SAMPLES = sa.Table(
    "samples",
    _METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("job_id", sa.Text()),
    *(sa.Column(name, sa.BigInteger()) for name in (*_WHOLE, *_MAYBE_WHOLE)),
    *(sa.Column(name, sa.Double()) for name in (*_REAL, *_MAYBE_REAL, "loss", "received_at")),
    *(sa.Column(name, sa.Text()) for name in (*_DOCUMENTS, "loss_kind")),
)
_BATCHES = sa.Table(
    "sample_batches",
    _METADATA,
    sa.Column("job_id", sa.Text()),
    sa.Column("last_id", sa.BigInteger()),
    sa.Column("n_samples", sa.BigInteger()),
    sa.Column("received_at", sa.Double()),
    sa.Column("document", sa.LargeBinary()),
)
_BLOCKS = sa.Table(
    "sample_blocks",
    _METADATA,
    *(sa.Column(name, sa.BigInteger()) for name in ("membership_epoch", "rank", "number", "max_step")),
    sa.Column("job_id", sa.Text()),
    sa.Column("bits", sa.LargeBinary()),
)
_JOBS = sa.Table("jobs", _METADATA, sa.Column("id", sa.Text()), sa.Column("n_samples", sa.BigInteger()))


def upgrade() -> None:
    """Make the tables, and move all samples."""
    op.add_column("jobs", sa.Column("n_samples", sa.BigInteger(), server_default="0", nullable=False))
    op.create_table(
        "sample_batches",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("last_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("n_samples", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_sample_batches_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "last_id", name="pk_sample_batches"),
    )
    op.create_table(
        "sample_blocks",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("membership_epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("bits", sa.LargeBinary(), nullable=False),
        sa.Column("max_step", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_sample_blocks_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "membership_epoch", "rank", "number", name="pk_sample_blocks"),
    )
    for job_id in _jobs_in(_SAMPLES):
        _gather(job_id)
    op.drop_table("samples")


def downgrade() -> None:
    """A row for each sample again."""
    op.create_table(
        "samples",
        sa.Column("id", _ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _WHOLE),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in _MAYBE_WHOLE),
        *(sa.Column(name, sa.Double(), nullable=False) for name in (*_REAL, "received_at")),
        *(sa.Column(name, sa.Double(), nullable=True) for name in (*_MAYBE_REAL, "loss")),
        *(sa.Column(name, sa.Text(), nullable=True) for name in _DOCUMENTS),
        sa.Column("loss_kind", sa.String(8), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_samples_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_samples"),
        sa.UniqueConstraint("job_id", *_KEY, name="uq_samples_job_id_membership_epoch_rank_sequence"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_samples_job_id_id", "samples", ["job_id", "id"])
    for job_id in _jobs_in(_BATCHES):
        _spread(job_id)
    op.drop_table("sample_blocks")
    op.drop_table("sample_batches")
    op.drop_column("jobs", "n_samples")


def _jobs_in(table: sa.Table) -> list[str]:
    return list(op.get_bind().scalars(sa.select(table.c.job_id).distinct()))


# --- rows to documents -----------------------------------------------------------------------------------------------


def _gather(job_id: str) -> None:
    """Move a job's samples: those of one moment together, at most `_AT_ONCE` of them."""
    last_id, blocks = 0, dict[tuple[int, int, int], list[int]]()
    for received_at, group in groupby(_rows_of(job_id), key=lambda row: row["received_at"]):
        while rows := list(islice(group, _AT_ONCE)):
            last_id += len(rows)
            values = {"job_id": job_id, "last_id": last_id, "n_samples": len(rows), "received_at": received_at}
            op.get_bind().execute(_BATCHES.insert(), [values | {"document": _document(rows)}])
            for row in rows:
                epoch, rank, sequence = (row[name] for name in _KEY)
                block = blocks.setdefault((epoch, rank, sequence // _BLOCK), [0, 0])
                block[0] |= 1 << sequence % _BLOCK
                block[1] = max(block[1], row["step"])
    names = ("membership_epoch", "rank", "number")
    rows_of_blocks = [
        dict(zip(names, key, strict=True))
        | {"job_id": job_id, "bits": bits.to_bytes((bits.bit_length() + 7) // 8, "little"), "max_step": max_step}
        for key, (bits, max_step) in blocks.items()
    ]
    op.get_bind().execute(_BLOCKS.insert(), rows_of_blocks)
    op.get_bind().execute(_JOBS.update().where(_JOBS.c.id == job_id).values(n_samples=last_id))


def _rows_of(job_id: str) -> Iterator[sa.RowMapping]:
    """A page at a time: a long job has millions."""
    after = 0
    chosen = sa.select(_SAMPLES).where(_SAMPLES.c.job_id == job_id).order_by(_SAMPLES.c.id).limit(_AT_ONCE)
    while page := op.get_bind().execute(chosen.where(_SAMPLES.c.id > after)).mappings().all():
        yield from page
        after = page[-1]["id"]


def _document(rows: Sequence[sa.RowMapping]) -> bytes:
    header: list[list[Any]] = []
    packed = [b""]
    for name in (*_FIELDS, "loss"):
        values = [_told(row, name) for row in rows]
        if name in _DEFAULTS and all(value == _DEFAULTS[name] for value in values):
            continue
        code = "q" if name in _WHOLE else "d" if name in (*_REAL, "loss") and None not in values else None
        header.append([name, code or values])
        if code is not None:
            packed.append(struct.pack(f"<{len(values)}{code}", *values))
    text = json.dumps({"n": len(rows), "columns": header}, separators=(",", ":")).encode()
    return b"".join([struct.pack("<I", len(text)), text, *packed])


def _told(row: sa.RowMapping, name: str) -> Any:
    """The value as a document says it."""
    if name in _DOCUMENTS:
        return None if row[name] is None else json.loads(row[name])
    if name != "loss" or row["loss_kind"] == "finite":
        return row[name]
    return None if row["loss_kind"] == "none" else float(row["loss_kind"])


# --- documents to rows -----------------------------------------------------------------------------------------------


def _spread(job_id: str) -> None:
    after = 0
    chosen = sa.select(_BATCHES).where(_BATCHES.c.job_id == job_id).order_by(_BATCHES.c.last_id).limit(1)
    while batch := op.get_bind().execute(chosen.where(_BATCHES.c.last_id > after)).mappings().first():
        after = batch["last_id"]
        rows = _rows_in(batch["document"])
        common = {"job_id": job_id, "received_at": batch["received_at"]}
        op.get_bind().execute(_SAMPLES.insert(), [_values(row) | common for row in rows])


def _rows_in(document: bytes) -> list[dict[str, Any]]:
    (length,) = struct.unpack_from("<I", document)
    place = 4 + length
    header = json.loads(document[4:place])
    columns: dict[str, Sequence[Any]] = {}
    for name, told in header["columns"]:
        if isinstance(told, str):
            columns[name] = struct.unpack_from(f"<{header['n']}{told}", document, place)
            place += 8 * header["n"]
        else:
            columns[name] = told if isinstance(told, list) else [told] * header["n"]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _values(row: dict[str, Any]) -> dict[str, Any]:
    values = {name: row.get(name, _DEFAULTS.get(name)) for name in _FIELDS}
    for name in _DOCUMENTS:
        values[name] = None if values[name] is None else json.dumps(values[name], separators=(",", ":"))
    loss = row.get("loss")
    finite = loss is not None and loss - loss == 0
    kind = "none" if loss is None else "finite" if finite else str(float(loss))
    return values | {"loss": loss if finite else None, "loss_kind": kind}
