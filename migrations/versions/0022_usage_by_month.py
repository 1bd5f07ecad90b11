"""What jobs were given, added up by month, project, owner and GPU type.

Revision 0022, after 0021. What jobs had before is added up from their memberships, in which the starting of tasks, and
waits for a retry after an error, are not told apart from training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0022"
down_revision: str | None = "0021"

_HELD = """
SELECT jobs.id AS id, jobs.project AS project, jobs.owner AS owner, jobs.spec AS spec, jobs.finished_at AS finished_at,
    jobs.created_at AS created_at, jobs.wanted_at AS wanted_at, memberships.at AS at,
    memberships.n_workers AS n_workers, memberships.servers AS servers, memberships.gpu_type AS gpu_type
FROM memberships JOIN jobs ON jobs.id = memberships.job_id
WHERE jobs.heard_at IS NULL
ORDER BY memberships.job_id, memberships.epoch
"""
_AT_ONCE = 10_000


def upgrade() -> None:
    """Make the table, with what is known."""
    op.create_table(
        "usage",
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("gpu_type", sa.Text(), nullable=False),
        sa.Column("worker_seconds", sa.Double(), nullable=False),
        sa.Column("core_seconds", sa.Double(), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("month", "project", "owner", "gpu_type", name="pk_usage"),
    )
    sums: dict[tuple[str, str, str, str], list[float]] = {}
    rows = op.get_bind().execute(sa.text(_HELD), execution_options={"yield_per": _AT_ONCE}).mappings()
    for _, of_job in groupby(rows, key=lambda row: row["id"]):
        for key, amounts in _held(list(of_job)):
            known = sums.setdefault(key, [0.0, 0.0, 0.0])
            sums[key] = [a + b for a, b in zip(known, amounts, strict=True)]
    names = ("month", "project", "owner", "gpu_type", "worker_seconds", "core_seconds", "gpu_seconds")
    if sums:
        table = sa.table("usage", *(sa.column(name) for name in names))
        op.bulk_insert(table, [dict(zip(names, (*key, *sums[key]), strict=True)) for key in sorted(sums)])


def downgrade() -> None:
    """What was used is forgotten."""
    op.drop_table("usage")


def _held(memberships: list[Any]) -> Iterator[tuple[tuple[str, str, str, str], tuple[float, float, float]]]:
    """What one job held, by month. What it has been given since `wanted_at` is added up later, when that changes."""
    job = memberships[0]
    # Without an end it is active: what it has had since the last change is not over.
    end = job["finished_at"] if job["finished_at"] is not None else job["wanted_at"]
    spec = json.loads(job["spec"] or "{}")
    worker, server = _needs(spec, "workers"), _needs(spec, "servers")
    for number, row in enumerate(memberships):
        until = memberships[number + 1]["at"] if number + 1 < len(memberships) else end
        n_workers, n_servers = row["n_workers"], len(json.loads(row["servers"] or "[]"))
        per_second = (
            n_workers,
            *(
                n_workers * of_worker + n_servers * of_server
                for of_worker, of_server in zip(worker, server, strict=True)
            ),
        )
        for month, seconds in _months(max(row["at"], row["created_at"]), min(until or 0.0, end or 0.0)):
            if any(per_second):
                key = month, row["project"], row["owner"] or "", row["gpu_type"] or ""
                yield key, tuple(each * seconds for each in per_second)


def _needs(spec: Any, role: str) -> tuple[float, float]:
    """Cores and GPUs of one task."""
    demand = spec.get(role) if isinstance(spec, dict) else None
    resources = demand.get("resources") if isinstance(demand, dict) else None
    said = resources if isinstance(resources, dict) else {}
    cpu, gpus = said.get("cpu", 1.0), said.get("gpus", 0)
    return float(cpu) if isinstance(cpu, int | float) else 0.0, float(gpus) if isinstance(gpus, int | float) else 0.0


def _months(since: float, until: float) -> Iterator[tuple[str, float]]:
    """The time between two moments by month (UTC), in seconds."""
    while since < until:
        start = datetime.fromtimestamp(since, UTC)
        years, month = divmod(start.month, 12)
        end = min(until, datetime(start.year + years, month + 1, 1, tzinfo=UTC).timestamp())
        yield start.strftime("%Y-%m"), end - since
        since = end
