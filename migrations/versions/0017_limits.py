"""Limits of users and projects. Variables of jobs may be encrypted from here on.

Revision 0017, after 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0015"

_SEALED = "SELECT count(*) FROM jobs WHERE spec LIKE '%\"environment$_sealed\":\"%' ESCAPE '$'"


def upgrade() -> None:
    """Add the columns. What is encrypted is the service's to do, which has the keys."""
    op.add_column("users", sa.Column("limits", sa.Text(), nullable=True))
    op.add_column("projects", sa.Column("limits", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop them. An earlier release would start jobs without their variables, so that none may be encrypted."""
    sealed = op.get_bind().execute(sa.text(_SEALED)).scalar_one()
    if sealed:
        raise RuntimeError(
            f"{sealed} jobs have encrypted variables, which an earlier release cannot read: stop the service, run "
            "`optimus secrets decrypt` with its settings, then go back"
        )
    op.drop_column("projects", "limits")
    op.drop_column("users", "limits")
