"""Find the job that a user means by an id, a name, or the beginning of either."""

from __future__ import annotations

import re
from collections.abc import Sequence

from optimus_cli.bodies import Job
from optimus_cli.client import Client
from optimus_cli.errors import AmbiguousJob, NoSuchJob, Refused

NOT_FOUND = 404
SHOWN_CANDIDATES = 8


def find_job(client: Client, reference: str) -> Job:
    """The job whose id is `reference`, else the only one with that name, else the only one with that prefix.

    Raises `NoSuchJob` or `AmbiguousJob`.
    """
    if not re.fullmatch(r"[-a-z0-9]+", reference):
        raise NoSuchJob(f"No job is called {reference!r}: names have lower-case letters, digits and - only.")
    try:
        return client.job(reference)
    except Refused as refusal:
        if refusal.status != NOT_FOUND:
            raise
    return choose(reference, list(client.jobs({}, limit=None)))


def choose(reference: str, jobs: Sequence[Job]) -> Job:
    """As `find_job`, among `jobs`. Pure."""
    by_name = [job for job in jobs if job["name"] == reference]
    by_prefix = [job for job in jobs if job["id"].startswith(reference) or job["name"].startswith(reference)]
    candidates = by_name or by_prefix
    if not candidates:
        raise NoSuchJob(f"No job is called {reference!r}. `optimus list` shows what there is.")
    if len(candidates) > 1:
        ids = ", ".join(job["id"] for job in candidates[:SHOWN_CANDIDATES])
        more = "" if len(candidates) <= SHOWN_CANDIDATES else f" and {len(candidates) - SHOWN_CANDIDATES} more"
        raise AmbiguousJob(f"{reference!r} could be any of {ids}{more}. Give the id.")
    return candidates[0]
