"""What workers take of their machines, and how noisy their gradients are.

Revision 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"


def upgrade() -> None:
    """Make the columns."""
    op.add_column("samples", sa.Column("usage", sa.Text(), nullable=True))
    op.add_column("samples", sa.Column("gradients", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_column("samples", "gradients")
    op.drop_column("samples", "usage")
