"""Nodes that operators closed.

Revision 0020, after 0019.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "closed_nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("emptied", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_closed_nodes")),
    )


def downgrade() -> None:
    """Drop it: the nodes are open again."""
    op.drop_table("closed_nodes")
