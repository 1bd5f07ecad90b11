"""What was predicted of each job on the way, kept to be judged by its end.

Revision 0011, after 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "promises",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("part", sa.String(16), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_promises_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "part", name=op.f("pk_promises")),
    )


def downgrade() -> None:
    """Drop it, with all that is in it."""
    op.drop_table("promises")
