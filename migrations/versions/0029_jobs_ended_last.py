"""The jobs that ended last are found by an index: how long they took tells when others are likely to end.

Revision 0029, after 0028.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0029"
down_revision: str | None = "0028"

_ENDED = sa.text("finished_at IS NOT NULL AND started_at IS NOT NULL AND heard_at IS NULL")


def upgrade() -> None:
    """An index of those that were on the cluster."""
    op.create_index("ix_jobs_ended", "jobs", ["finished_at", "id"], sqlite_where=_ENDED, postgresql_where=_ENDED)


def downgrade() -> None:
    """An earlier release does not ask."""
    op.drop_index("ix_jobs_ended", table_name="jobs")
