"""How many jobs have ended, by project and state; names beside the ages of jobs, so that a part of one is looked for
without reading the jobs.

Revision 0025, after 0024.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0025"
down_revision: str | None = "0024"


def upgrade() -> None:
    """All jobs are counted once."""
    op.create_table(
        "ended_jobs",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("n_jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "state", name="pk_ended_jobs"),
    )
    op.execute(
        "INSERT INTO ended_jobs (project, state, n_jobs) SELECT project, state, count(*) FROM jobs "
        "WHERE state IN ('succeeded', 'failed', 'cancelled') GROUP BY project, state"
    )
    op.drop_index("ix_jobs_created_at_id", "jobs")
    op.create_index("ix_jobs_created_at_id_name", "jobs", ["created_at", "id", "name"])


def downgrade() -> None:
    """An earlier release counts the jobs."""
    op.drop_index("ix_jobs_created_at_id_name", "jobs")
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.drop_table("ended_jobs")
