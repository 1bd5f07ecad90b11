"""Find the job that a user means by an id, a name, or the beginning of either."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
    # Names first: the service looks them up. Only the beginning of an id needs all jobs.
    candidates = matching(reference, client.jobs({"name": reference}, limit=None))
    return only(reference, candidates or matching(reference, client.jobs({}, limit=None)))


def matching(reference: str, jobs: Iterable[Job]) -> list[Job]:
    """The jobs with this name; if there is none, those whose name or id begins so. Pure."""
    jobs = list(jobs)
    by_name = [job for job in jobs if job["name"] == reference]
    return by_name or [job for job in jobs if job["id"].startswith(reference) or job["name"].startswith(reference)]


def only(reference: str, candidates: Sequence[Job]) -> Job:
    """The single candidate. Raises `NoSuchJob` or `AmbiguousJob`."""
    if not candidates:
        raise NoSuchJob(f"No job is called {reference!r}. `optimus list` shows what there is.")
    if len(candidates) > 1:
        ids = ", ".join(job["id"] for job in candidates[:SHOWN_CANDIDATES])
        more = "" if len(candidates) <= SHOWN_CANDIDATES else f" and {len(candidates) - SHOWN_CANDIDATES} more"
        raise AmbiguousJob(f"{reference!r} could be any of {ids}{more}. Give the id.")
    return candidates[0]
