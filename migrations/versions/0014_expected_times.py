"""When each active job is expected to start and to end, by the queue simulated forward.

Revision 0014, after 0013.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "expected_times",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("good_until", sa.Double(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_expected_times_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_expected_times")),
    )


def downgrade() -> None:
    """Drop it, with all that is in it."""
    op.drop_table("expected_times")
