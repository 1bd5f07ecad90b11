"""What stopping a script costs that is not known to keep checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime

from optimus_cli import wording
from optimus_cli.bodies import Job
from optimus_cli.client import Client


def lost_by_a_stop(client: Client, job: Job) -> str:
    """`86 steps (3 min 05 s of work)`, `3 min 05 s of work`; empty: nothing, as far as is known."""
    if job["state"] != "running" or not job["begins_anew"]:
        return ""
    points = client.allocations(job["id"])
    since = wording.moment(points[-1]["at"]) if points and points[-1]["workers"] else None
    seconds = None if since is None else (datetime.now(UTC) - since).total_seconds()
    return wording.lost(job["step"], seconds)
