"""When the newest step of a job came, and when its newest membership began.

Revision 0028, after 0027. Both are empty until the next of each.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0028"
down_revision: str | None = "0027"


def upgrade() -> None:
    """Columns that are empty."""
    op.add_column("jobs", sa.Column("step_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("formed_at", sa.Double(), nullable=True))


def downgrade() -> None:
    """An earlier release takes a step for as new as the look at it."""
    op.drop_column("jobs", "formed_at")
    op.drop_column("jobs", "step_at")
