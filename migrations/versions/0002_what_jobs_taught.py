"""What ended jobs taught, figures of evaluations in samples, and the layers of a job's network.

Revision 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the table and the columns."""
    op.create_table(
        "finished_runs",
        sa.Column("id", _ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_finished_runs_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_finished_runs")),
        sa.UniqueConstraint("job_id", name=op.f("uq_finished_runs_job_id")),
        sqlite_autoincrement=True,
    )
    op.add_column("samples", sa.Column("metrics", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("network", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_column("jobs", "network")
    op.drop_column("samples", "metrics")
    op.drop_table("finished_runs")
