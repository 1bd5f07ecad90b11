"""Jobs that their owner paused, and labels.

Revision 0012, after 0011.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"


def upgrade() -> None:
    """Make the column and the table."""
    op.add_column("jobs", sa.Column("owner_paused_at", sa.Double(), nullable=True))
    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_labels")),
    )
    op.create_index(op.f("ix_job_labels_name_value"), "job_labels", ["name", "value"])


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_table("job_labels")
    op.drop_column("jobs", "owner_paused_at")
