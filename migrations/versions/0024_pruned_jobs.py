"""Which ended jobs have nothing left that is too old, so that retention looks at the others only; names are indexed.

Revision 0024, after 0023.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | None = "0023"


def upgrade() -> None:
    """No job has the mark: the first sweep looks at all that have ended, some at a time."""
    op.add_column("jobs", sa.Column("pruned_at", sa.Double(), nullable=True))
    where = sa.text("pruned_at IS NULL")
    op.create_index("ix_jobs_unpruned", "jobs", ["finished_at"], sqlite_where=where, postgresql_where=where)
    op.create_index("ix_jobs_name_id", "jobs", ["name", "id"], postgresql_ops={"name": "text_pattern_ops"})
    op.create_index("ix_jobs_id_text", "jobs", ["id"], postgresql_ops={"id": "text_pattern_ops"})


def downgrade() -> None:
    """An earlier release looks at all ended jobs."""
    for name in ("ix_jobs_id_text", "ix_jobs_name_id", "ix_jobs_unpruned"):
        op.drop_index(name, "jobs")
    op.drop_column("jobs", "pruned_at")
