"""What servers and coordinators take of their machines.

Revision 0006, after 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"


def upgrade() -> None:
    """Make the columns."""
    op.add_column("tasks", sa.Column("usage", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("usage_at", sa.Double(), nullable=True))


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_column("tasks", "usage_at")
    op.drop_column("tasks", "usage")
