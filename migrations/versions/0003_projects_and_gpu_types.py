"""Projects with quotas, and which GPU type tasks and memberships had.

Revision 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    """Make the table and the columns."""
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("share", sa.Double(), nullable=True),
        sa.Column("cpu", sa.Double(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("may_borrow", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.add_column("tasks", sa.Column("gpu_type", sa.Text(), nullable=True))
    op.add_column("memberships", sa.Column("gpu_type", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_column("memberships", "gpu_type")
    op.drop_column("tasks", "gpu_type")
    op.drop_table("projects")
