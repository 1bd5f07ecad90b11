"""Which Kubernetes object a job comes from: until now a part of its idempotency key, which users choose for themselves.

Revision 0007, after 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"


def upgrade() -> None:
    """Make the column, and move the uids there: a user's own key of that prefix hardly ever looks like one."""
    op.add_column("jobs", sa.Column("object_uid", sa.Text(), nullable=True))
    op.create_index(op.f("ix_jobs_object_uid"), "jobs", ["object_uid"], unique=True)
    op.execute(
        "UPDATE jobs SET object_uid = substr(idempotency_key, 13), idempotency_key = NULL "
        "WHERE idempotency_key LIKE 'trainingjob:________-____-____-____-____________'"
    )


def downgrade() -> None:
    """Move them back."""
    op.execute("UPDATE jobs SET idempotency_key = 'trainingjob:' || object_uid WHERE object_uid IS NOT NULL")
    op.drop_index(op.f("ix_jobs_object_uid"), table_name="jobs")
    op.drop_column("jobs", "object_uid")
