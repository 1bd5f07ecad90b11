"""Whom an OpenID provider knows a user as.

Revision 0018, after 0016.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0016"


def upgrade() -> None:
    """Make the column."""
    op.add_column("users", sa.Column("subject", sa.Text(), nullable=True))
    op.create_index(op.f("ix_users_subject"), "users", ["subject"], unique=True)


def downgrade() -> None:
    """Drop it: users who sign in with the provider stay, as users that an administrator made."""
    op.drop_index(op.f("ix_users_subject"), table_name="users")
    op.drop_column("users", "subject")
