"""What is known of a job by its samples, so that a restarted service does not read them all again.

Revision 0019, after 0018. Without a row the samples are read, as before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"


def upgrade() -> None:
    """Make the table, empty: the leader fills it."""
    op.create_table(
        "job_histories",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_histories_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_histories"),
    )


def downgrade() -> None:
    """Samples are read again after a restart."""
    op.drop_table("job_histories")
