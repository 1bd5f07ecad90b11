"""Which task a finished run teaches of, so that those of a task are found however many of others came after them.

Revision 0030, after 0029. What is stored tells it of the runs that are there.
"""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision: str = "0030"
down_revision: str | None = "0029"

_AT_ONCE = 500
"""Runs of some 4 kB that are read and written together."""
_LEAST_LOSSES = 5
"""A run with fewer, without speeds and without a length teaches nothing."""
_LONGEST = 1000
"""Bytes of a task in an index; PostgreSQL takes some 2,700."""
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


def _key(task: str) -> str:
    """A task that PostgreSQL cannot index, or cannot hold, by a hash."""
    encoded = task.encode(errors="surrogatepass")
    is_plain = len(encoded) <= _LONGEST and b"\0" not in encoded and encoded == task.encode(errors="replace")
    return task if is_plain else f"sha256 {hashlib.sha256(encoded).hexdigest()}"


def _task_of(text: str) -> str:
    """Empty: it teaches nothing."""
    try:
        document = json.loads(text)
        teaches = document["speeds"] or document.get("silent") or len(document["losses"]) >= _LEAST_LOSSES
        return _key(document["task"]) if teaches else ""
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""
