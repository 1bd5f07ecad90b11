"""Which samples are in what is known of a job, so that those may go.

Revision 0021, after 0020. What was kept before is forgotten: all samples are still there then.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"


def upgrade() -> None:
    """An empty table with the column."""
    op.execute("DELETE FROM job_histories")
    op.add_column("job_histories", sa.Column("last_id", sa.BigInteger(), nullable=False, server_default="0"))
    with op.batch_alter_table("job_histories") as table:
        table.alter_column("last_id", server_default=None)


def downgrade() -> None:
    """What is known stays; samples that are gone do not come back."""
    op.drop_column("job_histories", "last_id")
