"""Attempts of jobs at training, and when the next one is due.

Revision 0008, after 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"


def upgrade() -> None:
    """Make the columns."""
    op.add_column("jobs", sa.Column("attempt", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("retries", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("retry_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("last_error", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("attempt", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_column("tasks", "attempt")
    for name in ("last_error", "retry_at", "retries", "attempt"):
        op.drop_column("jobs", name)
