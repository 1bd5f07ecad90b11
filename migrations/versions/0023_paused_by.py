"""Who paused a job.

Revision 0023, after 0022. Of jobs that are paused now it is not known.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"


def upgrade() -> None:
    """A column that is empty."""
    op.add_column("jobs", sa.Column("paused_by", sa.Text(), nullable=True))


def downgrade() -> None:
    """What is paused stays so."""
    op.drop_column("jobs", "paused_by")
