"""When a job lost what a membership had, where none followed: what it cost is counted until then.

Revision 0031, after 0030. Of memberships that are there, and of jobs that wait or have ended, it is the time since
which they are to have nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0031"
down_revision: str | None = "0030"

_JOBS = sa.table("jobs", *(sa.column(name) for name in ("id", "state", "wanted_workers", "wanted_at")))
_MEMBERSHIPS = sa.table("memberships", *(sa.column(name) for name in ("job_id", "epoch", "n_workers", "ended_at")))


def upgrade() -> None:
    """A column that is filled."""
    op.add_column("memberships", sa.Column("ended_at", sa.Double(), nullable=True))
    later = _MEMBERSHIPS.alias("later")
    newest = sa.select(sa.func.max(later.c.epoch)).where(later.c.job_id == _MEMBERSHIPS.c.job_id).scalar_subquery()
    stopped = sa.select(_JOBS.c.id).where(_JOBS.c.state != "running", _JOBS.c.wanted_workers == 0)
    since = sa.select(_JOBS.c.wanted_at).where(_JOBS.c.id == _MEMBERSHIPS.c.job_id).scalar_subquery()
    op.execute(
        sa.update(_MEMBERSHIPS)
        .where(_MEMBERSHIPS.c.job_id.in_(stopped), _MEMBERSHIPS.c.epoch == newest, _MEMBERSHIPS.c.n_workers > 0)
        .values(ended_at=since)
    )


def downgrade() -> None:
    """An earlier release counts until the next membership."""
    op.drop_column("memberships", "ended_at")
