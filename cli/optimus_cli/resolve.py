"""Find the job that a user means by an id, a name, or the beginning of either."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from optimus_cli import output
from optimus_cli.bodies import Job
from optimus_cli.client import PAGE_SIZE, Client, is_final
from optimus_cli.errors import AmbiguousJob, BadInput, NoSuchJob, Refused

NOT_FOUND = 404
SHOWN_CANDIDATES = 8
SHOWN_NEAREST = 3
LONGEST_REFERENCE = 63
"""Characters of the longest name or id."""
MOST_LOOKS = 5
"""A job that changes each time while the rest is read is shown as it is by then."""
_CHANGES = (
    *("name", "state", "directive", "spec", "wanted", "running", "membership_epoch", "global_batch", "attempt"),
    *("retries", "rescales", "reason", "limit_reached", "deadline_promised_at", "failure", "finished_at"),
)
"""What of a job changes with an event or a decision, and not with each step."""
_T = TypeVar("_T")


def find_job(client: Client, reference: str) -> Job:
    """The job that is meant by an id, a name, or the beginning of either.

    Of several jobs of one name, as after `optimus retry`, the service chooses (`match=one`); which one is said. Asks it
    a few times, for one page at most, however many jobs there are.

    Raises `NoSuchJob` or `AmbiguousJob`.
    """
    if not re.fullmatch(r"[-a-z0-9]+", reference):
        near = nearest(reference, list(client.jobs({}, limit=PAGE_SIZE)))
        hint = f" Did you mean {near}?" if near else ""
        raise NoSuchJob(f"No job is called {reference!r}: names have lower-case letters, digits and - only.{hint}")
    if len(reference) > LONGEST_REFERENCE:
        raise NoSuchJob(f"No job is called {reference!r}: names have at most {LONGEST_REFERENCE} characters.")
    try:
        return client.job(reference)
    except Refused as refusal:
        if refusal.status != NOT_FOUND:
            raise
    found = _one(client, reference)
    if found is None:
        candidates = list(client.jobs({"name": reference, "match": "start"}, limit=PAGE_SIZE))
        if not candidates:
            raise NoSuchJob(no_such_job(reference, list(client.jobs({}, limit=PAGE_SIZE))))
        names = {job["name"] for job in candidates}
        found = candidates[0] if len(candidates) == 1 else _one(client, only(reference, candidates, names))
    if found is None:  # it was deleted or renamed in between
        raise NoSuchJob(no_such_job(reference, []))
    return found


def with_the_rest(client: Client, found: Job, read: Callable[[], _T]) -> tuple[Job, _T]:
    """The job and what `read` asks of it, as of one time: both are asked for again as long as the job has changed in
    between, `MOST_LOOKS` times at most."""
    for _ in range(MOST_LOOKS):
        rest, before = read(), found
        found = client.job(before["id"])
        if _settled(found) == _settled(before):
            break
    return found, rest


def _settled(job: Job) -> list[object]:
    stands_still = job.get("standstill") is not None  # its words count the seconds
    return [*(job.get(name) for name in _CHANGES), stands_still]


def _one(client: Client, name: str) -> Job | None:
    """The job that is meant by this name; says which one that is, where several have it."""
    found = next(iter(client.jobs({"name": name, "match": "one"}, limit=1)), None)
    if found is not None:
        others = [job for job in client.jobs({"name": name, "match": "exact"}, limit=2) if job["id"] != found["id"]]
        if others:
            which = "the newest of them" if is_final(found) else "the newest of them that is active"
            output.say(f"Several jobs are called {name}: this is about {found['id']}, {which}.")
    return found


def check_project(client: Client, name: str) -> None:
    """Raises `BadInput` when no job belongs to the project and it has no quota: the name is misspelled, most likely."""
    quotas = _others(client, name)
    if quotas is None:
        return
    known = f" Projects with a quota: {', '.join(quotas)}." if quotas else ""
    raise BadInput(f"--project {name}: no job belongs to it, and it has no quota.{known}")


def near_projects(client: Client, documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of each project that these submissions would begin and that has nearly the name of one with a quota: that it is
    new. A hint refuses no submission: nothing is said where the service does not tell."""
    named = sorted({document["project"] for document in documents if document.get("project")})
    try:
        near = [(name, difflib.get_close_matches(name, _others(client, name) or (), n=1)) for name in named]
    except Refused:
        return []
    return [f"Project {name} is new, and has no quota. Did you mean {found[0]}?" for name, found in near if found]


def _others(client: Client, name: str) -> list[str] | None:
    """The projects with a quota where `name` is none of them, nor has a job; None: it is known."""
    quotas = [project["name"] for project in client.projects()]
    return None if name in quotas or list(client.jobs({"project": name}, limit=1)) else quotas


def only(reference: str, candidates: Sequence[Job], names: Collection[str]) -> str:
    """The single name that all candidates have. Raises `AmbiguousJob`."""
    if len(names) > 1:
        ids = ", ".join(job["id"] for job in candidates[:SHOWN_CANDIDATES])
        at_least = "at least " if len(candidates) == PAGE_SIZE else ""
        more = len(candidates) - SHOWN_CANDIDATES
        raise AmbiguousJob(
            f"{reference!r} could be any of {ids}{f' and {at_least}{more} more' if more > 0 else ''}. Give the id."
        )
    return next(iter(names))


def no_such_job(reference: str, newest: Sequence[Job]) -> str:
    """That no job has the name, with the nearest names among the newest jobs. Pure."""
    near = nearest(reference, newest)
    hint = f"Did you mean {near}?" if near else "`optimus list` shows what there is."
    if reference == "help":
        hint += " A command's help is shown by -h behind it."
    return f"No job is called {reference!r}. {hint}"


def nearest(reference: str, newest: Sequence[Job]) -> str:
    """`one or other`: the names and ids that are nearest to a reference; empty: none is near. Pure."""
    known = dict.fromkeys(text for job in newest for text in (job["name"], job["id"]))
    return " or ".join(difflib.get_close_matches(reference, list(known), n=SHOWN_NEAREST))
