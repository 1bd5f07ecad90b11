"""Which deadline a job was promised to meet, and when.

Revision 0026, after 0025. Deadlines of jobs that are there get their answer with the next look at the queue.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0026"
down_revision: str | None = "0025"


def upgrade() -> None:
    """Columns that are empty."""
    op.add_column("jobs", sa.Column("promised_deadline", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("promised_at", sa.Double(), nullable=True))


def downgrade() -> None:
    """An earlier release promises nothing."""
    op.drop_column("jobs", "promised_at")
    op.drop_column("jobs", "promised_deadline")
