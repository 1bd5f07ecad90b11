"""The first tables: jobs and what they did, rounds and what they decided, leases.

Revision 0001, the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None

_TABLES = ("jobs", "memberships", "samples", "tasks", "events", "rounds", "decisions", "leases")
"""In the order in which they refer to each other."""

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    _create_jobs()
    _create_memberships()
    _create_samples()
    _create_tasks()
    _create_events()
    _create_rounds()
    _create_decisions()
    _create_leases()


def downgrade() -> None:
    """Drop them, with all that is in them."""
    for table in reversed(_TABLES):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("directive", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("token_nonce", sa.Text(), nullable=False),
        sa.Column("coordinator_address", sa.Text(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("wanted_workers", sa.BigInteger(), nullable=False),
        sa.Column("wanted_servers", sa.BigInteger(), nullable=False),
        sa.Column("wanted_gpu_type", sa.Text(), nullable=True),
        sa.Column("wanted_at", sa.Double(), nullable=True),
        sa.Column("wanted_tasks", sa.Text(), nullable=False),
        sa.Column("membership_epoch", sa.BigInteger(), nullable=False),
        sa.Column("running_workers", sa.BigInteger(), nullable=False),
        sa.Column("running_servers", sa.BigInteger(), nullable=False),
        sa.Column("running_gpu_type", sa.Text(), nullable=True),
        sa.Column("rescales", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("epoch", sa.Double(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("loss_kind", sa.String(length=8), nullable=True),
        sa.Column("profile", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
    )
    op.create_index(op.f("ix_jobs_created_at_id"), "jobs", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_jobs_finished_at"), "jobs", ["finished_at"], unique=False)
    op.create_index(op.f("ix_jobs_project_created_at_id"), "jobs", ["project", "created_at", "id"], unique=False)
    op.create_index(op.f("ix_jobs_state_created_at_id"), "jobs", ["state", "created_at", "id"], unique=False)


def _create_memberships() -> None:
    op.create_table(
        "memberships",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("workers", sa.Text(), nullable=False),
        sa.Column("servers", sa.Text(), nullable=False),
        sa.Column("n_workers", sa.BigInteger(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("pause_seconds", sa.Double(), nullable=True),
        sa.Column("lost_steps", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_memberships_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_memberships")),
    )


def _create_samples() -> None:
    op.create_table(
        "samples",
        sa.Column("id", _ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("membership_epoch", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("servers", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("n_steps", sa.BigInteger(), nullable=False),
        sa.Column("data_epoch", sa.Double(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("loss_kind", sa.String(length=8), nullable=False),
        sa.Column("n_examples", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("data_seconds", sa.Double(), nullable=False),
        sa.Column("compute_seconds", sa.Double(), nullable=False),
        sa.Column("push_seconds", sa.Double(), nullable=False),
        sa.Column("wait_seconds", sa.Double(), nullable=False),
        sa.Column("pull_seconds", sa.Double(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False),
        sa.Column("staleness", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_samples_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_samples")),
        sa.UniqueConstraint(
            "job_id",
            "membership_epoch",
            "rank",
            "sequence",
            name=op.f("uq_samples_job_id_membership_epoch_rank_sequence"),
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_samples_job_id_id"), "samples", ["job_id", "id"], unique=False)


def _create_tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("unwanted_since", sa.Double(), nullable=True),
        sa.Column("exited_at", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_tasks_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "role", "rank", "incarnation", name=op.f("pk_tasks")),
    )
    op.create_index(
        "ix_tasks_alive",
        "tasks",
        ["job_id"],
        unique=False,
        sqlite_where=sa.text("exited_at IS NULL"),
        postgresql_where=sa.text("exited_at IS NULL"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", _ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_job_id_id"), "events", ["job_id", "id"], unique=False)


def _create_rounds() -> None:
    op.create_table(
        "rounds",
        sa.Column("id", _ID, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("phase_seconds", sa.Text(), nullable=False),
        sa.Column("n_jobs", sa.BigInteger(), nullable=False),
        sa.Column("n_actions", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_rounds_at"), "rounds", ["at"], unique=False)


def _create_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("round_id", _ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("servers", sa.BigInteger(), nullable=False),
        sa.Column("gpu_type", sa.Text(), nullable=True),
        sa.Column("previous_workers", sa.BigInteger(), nullable=False),
        sa.Column("previous_servers", sa.BigInteger(), nullable=False),
        sa.Column("previous_gpu_type", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("gain", sa.Double(), nullable=True),
        sa.Column("next_gain", sa.Double(), nullable=True),
        sa.Column("forecast", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_decisions_job_id_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_decisions_round_id_rounds"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_decisions_job_id_id"), "decisions", ["job_id", "id"], unique=False)
    op.create_index(op.f("ix_decisions_round_id"), "decisions", ["round_id"], unique=False)


def _create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
