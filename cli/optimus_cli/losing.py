"""What stopping a script costs that is not known to keep checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime

from optimus_cli import wording
from optimus_cli.bodies import Job
from optimus_cli.client import Client


def lost_by_a_stop(client: Client, job: Job) -> str:
    """`86 steps (3 min 05 s of work)`, `3 min 05 s of work`; empty: nothing, as far as is known."""
    if job["finished_at"] is not None or not job["begins_anew"]:
        return ""
    starts = [wording.moment(task["started_at"]) for task in client.tasks(job["id"]) if task["role"] == "worker"]
    if not starts:
        return ""
    since = max(starts)  # all begin with the last
    return wording.lost(job["step"] if job["running"]["workers"] else 0, (datetime.now(UTC) - since).total_seconds())
