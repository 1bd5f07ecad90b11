"""Which task a finished run teaches of, so that those of a task are found however many of others came after them.

Revision 0030, after 0029. What is stored tells it of the runs that are there.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision: str = "0030"
down_revision: str | None = "0029"

_AT_ONCE = 500
"""Runs of some 4 kB that are read and written together."""
_LEAST_LOSSES = 5
"""A run with fewer, without speeds and without a length teaches nothing."""
_RUNS = sa.table("finished_runs", sa.column("id"), sa.column("document", sa.Text()), sa.column("task", sa.Text()))


def upgrade() -> None:
    """A column that is filled, and its index."""
    op.add_column("finished_runs", sa.Column("task", sa.Text(), nullable=True))
    connection, last_id = op.get_bind(), 0
    page = sa.select(_RUNS.c.id, _RUNS.c.document).order_by(_RUNS.c.id).limit(_AT_ONCE)
    fill = sa.update(_RUNS).where(_RUNS.c.id == sa.bindparam("of")).values(task=sa.bindparam("is"))
    while runs := connection.execute(page.where(_RUNS.c.id > last_id)).all():
        connection.execute(fill, [{"of": run.id, "is": _task_of(run.document)} for run in runs])
        last_id = runs[-1].id
    op.create_index("ix_finished_runs_task_id", "finished_runs", ["task", "id"])


def downgrade() -> None:
    """An earlier release reads the newest runs of all tasks."""
    op.drop_index("ix_finished_runs_task_id", table_name="finished_runs")
    op.drop_column("finished_runs", "task")


def _task_of(text: str) -> str:
    """Empty: it teaches nothing."""
    try:
        document = json.loads(text)
        teaches = document["speeds"] or document.get("silent") or len(document["losses"]) >= _LEAST_LOSSES
        return document["task"] if teaches and isinstance(document["task"], str) else ""
    except (KeyError, TypeError, ValueError):
        return ""
