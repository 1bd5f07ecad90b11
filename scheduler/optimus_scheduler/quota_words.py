"""For which quota a job waits, and what quotas are and come to, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from optimus_scheduler.allocate.allocate_with_quotas import (
    NO_END_HELPS,
    RIGHT_OF_OTHERS,
    guarantee_alone,
    guarantees,
)
from optimus_scheduler.allocate.policy import Grant
from optimus_scheduler.allocate.staying import Room
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import TOLERANCE, Quota, Reason, Resources
from optimus_scheduler.model.resources import remaining

USED_UP = "Its project may not borrow, and its other jobs leave too little for it"
"""In the words about a job that waits for the end of one of its own project."""
IN_ITS_QUOTA = "better use of the room in its quota"
"""In the words (`explain`) about a job of a project whose jobs are given more than their minima."""
SHRUNK = "because the quotas of all projects together exceed what the open nodes have"


def with_quotas_told(
    outlooks: Iterable[Outlook], grants: Mapping[str, Grant], given: Sequence[Quota], room: Room
) -> dict[str, Grant]:
    """The grants of those that wait for a quota, with a sentence on whose that is, and of those that wait, or get no
    more, though their own would have room for them if others' did not shrink it."""
    by_id, quotas = {one.id: one for one in outlooks}, {each.project: each for each in given}
    rights = guarantees(given, *room)
    alone = {project: guarantee_alone(quota, room.capacity) for project, quota in quotas.items()}
    shrunk = {project for project, right in rights.items() if not alone[project].fits_in(right)}
    waiting = {
        job_id: grant
        for job_id, grant in grants.items()
        if (
            grant.reason is Reason.WAITING_FOR_QUOTA
            or (grant.reason in _OF_SHRUNK and by_id[job_id].job.spec.project in shrunk)
        )
        and by_id[job_id].job.spec.project in quotas
    }
    if not waiting:
        return {}
    held = dict[str, Resources]()
    for job_id, grant in grants.items():
        project = by_id[job_id].job.spec.project
        if not grant.allocation.is_empty and project in quotas:
            held[project] = held.get(project, Resources()) + by_id[job_id].demand(grant.allocation)

    @cache  # jobs of one project mostly need the same
    def cause(project: str, cpu: float, memory_bytes: int, gpus: tuple[tuple[str, int], ...]) -> _Cause:
        need, quota, right = Resources(cpu, memory_bytes, dict(gpus)), quotas[project], rights[project]

        def of_right(of: Mapping[str, Resources]) -> Resources:
            """What its jobs leave of what it would be guaranteed."""
            return remaining(of[project], held.get(project, Resources()))

        return _Cause(
            own_words(quota, alone[project], right, need),
            is_beyond=not need.fits_in(right),
            is_shrunk=project in shrunk and need.fits_in(of_right(alone)) and not need.fits_in(of_right(rights)),
            is_used_up=not need.fits_in(of_right(rights)),
        )

    def told(one: Outlook, grant: Grant) -> Grant:
        need, project = one.demand(one.minimum), one.job.spec.project
        found = cause(project, need.cpu, need.memory_bytes, tuple(need.gpus.items()))
        comes_to = f"Its project's {found.own.removeprefix('its ')}."
        if grant.reason is Reason.AT_QUOTA:
            return grant._replace(note=f"{comes_to} {grant.note or ''}".strip())
        if quotas[project].may_borrow or grant.note == RIGHT_OF_OTHERS:
            return grant._replace(note=f"{grant.note or ''} {comes_to}".strip()) if found.is_shrunk else grant
        if found.is_beyond:
            beyond = f"That is more than its project may hold: it may not borrow, and {found.own}"
            return grant._replace(note=f"{beyond}; {NO_END_HELPS}.", goes_first=False)
        if grant.grown or not found.is_used_up:
            return grant
        return grant._replace(note=f"{USED_UP}: {found.own}.{'' if grant.note is None else f' {grant.note}'}")

    return {job_id: told(by_id[job_id], grant) for job_id, grant in waiting.items()}


_OF_SHRUNK = frozenset({Reason.WAITING_FOR_RESOURCES, Reason.AT_QUOTA})
"""Reasons of jobs that may lack what others' quotas shrink of their project's."""


class _Cause(NamedTuple):
    """How the quota of a project suits what a job needs at least."""

    own: str
    """What the quota is and comes to, in words."""
    is_beyond: bool
    """It is more than the project is guaranteed."""
    is_shrunk: bool
    """It would not be, without the quotas of others."""
    is_used_up: bool
    """The project's jobs hold too much of that."""


_NAMED = 10
"""Projects whose quotas are named; of more the number is told."""


def quotas_told(message: str, quotas: Iterable[Quota]) -> list[str]:
    """Beside a message that says that they exceed the cluster: which they are, for a reader who may know of all."""
    if SHRUNK not in message:
        return []
    told = [f"{each.project} {quota_words(each)}" for each in sorted(quotas, key=lambda each: each.project)]
    more = f"; and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return [f"The quotas of all projects are: {'; '.join(told[:_NAMED])}{more}."] if told else []


def quota_words(quota: Quota) -> str:
    """`2 cores, 4 GiB`; `25 % of the cluster, but 2 cores`, as an amount overrules the share."""
    amounts = [] if quota.cpu is None else [core_words(quota.cpu)]
    amounts += [] if quota.memory_bytes is None else [_memory_words(quota.memory_bytes)]
    amounts += [f"{count} {kind}" for kind, count in sorted(quota.gpus.items())]
    share = [] if quota.share is None else [f"{100 * quota.share:.0f} % of the cluster"]
    return ", but ".join([*share, *([", ".join(amounts)] if amounts else [])]) or "nothing"


def core_words(cores: float) -> str:
    """With two decimals at most, rounded down: what comes to 0.999 cores is not enough for one."""
    told = math.floor(100 * cores + 1e-6) / 100
    return f"{told:g} core{'' if told == 1 else 's'}"


def own_words(quota: Quota, asked: Resources, right: Resources, need: Resources) -> str:
    """`its quota is 1 core`, `its quota of 1 core comes to 0.57 cores now, because ...`: what it comes to is told of
    what the quotas of others shrink, and of what it gives too little of for `need` without naming it.

    `asked`: what the project is guaranteed by its quota alone; `right`: beside the quotas of others.
    """
    is_share = quota.share is not None
    named = {"cpu": is_share or quota.cpu is not None, "memory": is_share or quota.memory_bytes is not None}
    amounts = [
        ("cpu", asked.cpu, right.cpu, need.cpu, core_words(right.cpu)),
        ("memory", asked.memory_bytes, right.memory_bytes, need.memory_bytes, _memory_words(right.memory_bytes)),
        *(
            (kind, count, right.gpus.get(kind, 0), need.gpus.get(kind, 0), f"{right.gpus.get(kind, 0)} {kind}")
            for kind, count in sorted(asked.gpus.items())
        ),
    ]
    shrunk = {kind for kind, wants, has, *_ in amounts if has < wants - TOLERANCE}
    told = [
        words
        for kind, _, has, needs, words in amounts
        if (
            kind in shrunk
            if named.get(kind, kind in quota.gpus or quota.share is not None)
            else needs > has + TOLERANCE
        )
    ]
    if not told:
        return f"its quota is {quota_words(quota)}"
    why = f", {SHRUNK}" if shrunk else ""
    return f"its quota of {quota_words(quota)} comes to {' and '.join(told)} now{why}"


def shrunk_words(quota: Quota, right: Resources, capacity: Resources, whole: Resources) -> str | None:
    """That a quota comes to less than it names, and why; None where it does not. `right`: as in `own_words`.

    `capacity`: what a round shares out; `whole`: what all nodes have, closed ones, too.
    """
    lacks = sorted(kind for kind, count in quota.gpus.items() if count > 0 and kind not in capacity.gpus)
    told = own_words(quota, guarantee_alone(quota, capacity), right, Resources())
    found = [told] if told.endswith(SHRUNK) else []
    for who, kinds in (
        ("no open node has", [kind for kind in lacks if kind in whole.gpus]),
        ("the cluster has no", [kind for kind in lacks if kind not in whole.gpus]),
    ):
        found += [f"{who} {' or '.join(kinds)}"] if kinds else []
    return "; ".join(found) or None


def right_words(quota: Quota, right: Resources) -> str:
    """What a project is guaranteed of all that its quota names."""
    told = [] if quota.cpu is None and quota.share is None else [core_words(right.cpu)]
    told += [] if quota.memory_bytes is None else [_memory_words(right.memory_bytes)]
    return ", ".join((*told, *(f"{right.gpus.get(kind, 0)} {kind}" for kind in sorted(quota.gpus))))


def _memory_words(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.3g} GiB"
