"""What the pauses of scripts consist of.

Revision 0013, after 0012.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"


def upgrade() -> None:
    """Make the column."""
    op.add_column("memberships", sa.Column("pause_parts", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop it, with all that is in it."""
    op.drop_column("memberships", "pause_parts")
