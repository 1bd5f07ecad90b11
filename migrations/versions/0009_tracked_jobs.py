"""When a job that runs outside the cluster last reported.

Revision 0009, after 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"


def upgrade() -> None:
    """Make the column."""
    op.add_column("jobs", sa.Column("heard_at", sa.Double(), nullable=True))


def downgrade() -> None:
    """Drop it, with all that is in it."""
    op.drop_column("jobs", "heard_at")
