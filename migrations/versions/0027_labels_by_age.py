"""When a label's job was submitted, beside the label: a page of the newest jobs with it reads no others.

Revision 0027, after 0026. Labels that a replica of an earlier release stores get 0; a later sweep mends them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0027"
down_revision: str | None = "0026"


def upgrade() -> None:
    """The moment of each label there is comes from its job."""
    op.add_column("job_labels", sa.Column("created_at", sa.Double(), nullable=False, server_default="0"))
    op.execute("UPDATE job_labels SET created_at = (SELECT created_at FROM jobs WHERE jobs.id = job_labels.job_id)")
    op.create_index("ix_job_labels_name_value_created_at", "job_labels", ["name", "value", "created_at", "job_id"])
    op.create_index("ix_job_labels_name_created_at", "job_labels", ["name", "created_at", "job_id"])
    op.drop_index("ix_job_labels_name_value", "job_labels")


def downgrade() -> None:
    """An earlier release sorts the jobs of a label."""
    op.create_index("ix_job_labels_name_value", "job_labels", ["name", "value"])
    op.drop_index("ix_job_labels_name_created_at", "job_labels")
    op.drop_index("ix_job_labels_name_value_created_at", "job_labels")
    op.drop_column("job_labels", "created_at")
