"""Learning rates: of each sample, and those that a job is to have.

Revision 0010, after 0009.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"


def upgrade() -> None:
    """Make the columns."""
    op.add_column("samples", sa.Column("learning_rate", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("planned_rates", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("planned_rates_version", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them, with all that is in them."""
    op.drop_column("jobs", "planned_rates_version")
    op.drop_column("jobs", "planned_rates")
    op.drop_column("samples", "learning_rate")
