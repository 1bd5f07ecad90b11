"""What is given before anything is compared: minima of jobs that have just started or have waited too long."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.candidates import BoolArray, Candidates, charges
from optimus_scheduler.policies.ladders import FloatArray, IntArray
from optimus_scheduler.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """The outcome; n jobs, r resources."""

    row: IntArray
    """(n,) the candidate that each job has for sure: nothing for most."""
    may_start: BoolArray
    """(n,) False for waiting jobs that would pass one whose turn it is."""
    room: FloatArray
    """(r,) what the others may share."""


def claims(
    outlooks: Sequence[Outlook],
    candidates: Candidates,
    demand: FloatArray,
    room: FloatArray,
    settings: Settings,
    unchanged: Collection[int] = (),
) -> Claims:
    """Who has something for sure. `unchanged`: jobs that are to keep what they have.

    A job that got tasks a moment ago keeps its minimum. Then come
    the waiting jobs that have waited too long, the longest overdue first, and none passes them: so nobody starves,
    however many short jobs arrive. Then come all other minima: as many as fit, those first that are worth most per
    share; who runs may so be paused for others. If all fit, only a waiting job of known length and speeds has no claim
    to it: it starts as soon as it is worth it.
    """
    row, least = candidates.first[:-1].copy(), candidates.first[:-1] + 1
    kept, late, others = _in_order(outlooks, candidates, demand, room, settings, unchanged)
    may_start = np.ones(len(outlooks), dtype=bool)
    for j in kept:
        wanted = present_row(outlooks[j], candidates, j) if j in unchanged else int(least[j])
        if (demand[wanted] <= room + 1e-9).all():
            row[j], room = wanted, room - demand[wanted]
    for j in late:
        if (demand[least[j]] <= room + 1e-9).all():
            row[j], room = least[j], room - demand[least[j]]
            continue
        may_start = np.array([one.is_held for one in outlooks]) | (row > candidates.first[:-1])
        room = np.maximum(room - demand[least[j]], 0.0)
        break
    open_to = [j for j in others if may_start[j]]
    if (demand[least[open_to]].sum(axis=0) <= room + 1e-9).all():
        sure = [j for j in open_to if outlooks[j].is_held or not is_known(outlooks[j])]
        row[sure] = least[sure]
        return Claims(row, may_start, room - demand[least[sure]].sum(axis=0))
    for j in open_to:
        if (demand[least[j]] <= room + 1e-9).all():
            row[j], room = least[j], room - demand[least[j]]
    return Claims(row, may_start, room)


def _in_order(
    outlooks: Sequence[Outlook],
    candidates: Candidates,
    demand: FloatArray,
    room: FloatArray,
    settings: Settings,
    unchanged: Collection[int],
) -> tuple[list[int], list[int], list[int]]:
    """Jobs that keep something, waiting jobs that are overdue, and the others, each in the order of their turn."""
    kept = _kept(outlooks, settings, unchanged)
    late = {
        j: overdue_seconds(one, float(candidates.least_speed[j]), settings)
        for j, one in enumerate(outlooks)
        if not (one.is_held or one.claimed)
    }
    least = candidates.first[:-1] + 1
    possible = np.asarray((demand[least] <= room + 1e-9).all(axis=1))  # who could not run even alone holds nobody up
    overdue = [j for j, seconds in late.items() if seconds > 0 and possible[j]]
    overdue.sort(key=lambda j: (-late[j], outlooks[j].id))
    gain = candidates.plain[least] / candidates.cost[least]
    # Who runs loses by being paused what it would pay to go on.
    gain = gain * (1.0 + np.where([one.is_held for one in outlooks], charges(outlooks, settings), 0.0))
    first = {*kept, *overdue}
    others = sorted((j for j in range(len(outlooks)) if j not in first), key=lambda j: (-gain[j], j))
    return kept, overdue, others


def is_known(outlook: Outlook) -> bool:
    """Whether it can be told how long the job takes, and with which sizes."""
    return not outlook.learning and outlook.forecast.remaining_steps is not None


def overdue_seconds(outlook: Outlook, least_speed: float, settings: Settings) -> float:
    """How much longer a waiting job has waited than it is asked to; negative before.

    The longer a job takes, the longer it may wait: a fixed patience plus a part of the time that it needs at its
    minimum, where it does `least_speed` steps per second.
    """
    if outlook.waited_seconds <= settings.patience_seconds:
        return outlook.waited_seconds - settings.patience_seconds
    remaining = outlook.forecast.remaining_steps
    is_unknown = remaining is None or outlook.speeds.source is None
    needed = outlook.typical_seconds if is_unknown or remaining is None else remaining.mean / least_speed
    patience = settings.patience_seconds + settings.patience_part * needed / outlook.job.spec.priority
    return outlook.waited_seconds - patience


def _kept(outlooks: Sequence[Outlook], settings: Settings, unchanged: Collection[int]) -> list[int]:
    """Jobs with a claim, then running jobs that keep something, the longest running first."""
    kept = [
        j
        for j, one in enumerate(outlooks)
        if one.claimed or j in unchanged or (one.is_held and one.held_seconds < settings.least_run_seconds)
    ]
    return sorted(kept, key=lambda j: (not outlooks[j].claimed, -outlooks[j].held_seconds, outlooks[j].id))


def is_near_end(outlook: Outlook, settings: Settings) -> bool:
    """Whether what the job holds will be free in a moment."""
    return outlook.is_held and outlook.remaining_seconds(outlook.present) < settings.near_end_seconds


def present_row(outlook: Outlook, candidates: Candidates, j: int) -> int:
    """The row of what the job has; of its minimum if that is no candidate."""
    first = int(candidates.first[j])
    rows = slice(first, int(candidates.first[j + 1]))
    size = outlook.present
    same = (candidates.workers[rows] == size.workers) & (candidates.servers[rows] == size.servers)
    return first + (int(np.argmax(same)) if same.any() and not size.is_empty else 1)
