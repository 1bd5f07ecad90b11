"""Batches that the scheduler chooses: what is wanted, what memberships had, what steps they made.

Revision 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"

_COLUMNS = (
    ("jobs", "wanted_batch"),
    ("decisions", "batch"),
    ("memberships", "global_batch"),
    ("samples", "global_batch"),
    ("samples", "updates"),
)


def upgrade() -> None:
    """Make the columns."""
    for table, column in _COLUMNS:
        op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Drop them, with all that is in them."""
    for table, column in reversed(_COLUMNS):
        op.drop_column(table, column)
