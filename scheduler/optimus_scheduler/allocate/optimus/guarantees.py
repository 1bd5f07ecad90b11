"""Guaranteed minima, granted before any comparison: above all of jobs that just started or have waited too long."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import BoolArray, FloatArray, IntArray, within
from optimus_scheduler.allocate.optimus.candidates import Candidates
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import TOLERANCE
from optimus_scheduler.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class Guaranteed:
    """The outcome; n jobs, r resources."""

    row: IntArray
    """(n,) the candidate that each job has for sure: nothing for most."""
    may_start: BoolArray
    """(n,) False for waiting jobs that would pass one whose turn it is."""
    available: FloatArray
    """(r,) what the others may share."""


def guaranteed(
    outlooks: Sequence[Outlook],
    candidates: Candidates,
    demand: FloatArray,
    available: FloatArray,
    settings: Settings,
    unchanged: Collection[int] = (),
) -> Guaranteed:
    """The rows that are guaranteed. `unchanged`: jobs that keep what they have.

    A job that got tasks a moment ago keeps its minimum, and so does one whose pause would lose more than is left of it.
    Then come the waiting jobs that have waited too long, by their patience and by what there was to do when their wait
    began, the longest overdue first, and none passes them: so no job starves, however many short jobs arrive. All other
    minima come next, but only if all of them fit: where they do not, the jobs of most worth run, and a second
    worker of a short job may be worth more than the first one of a long job, which is paused for it. And a waiting job
    of known length and speeds is not guaranteed its minimum: it starts as soon as it is worth it.
    """
    jobs = JobColumns.of(outlooks)
    row, least = candidates.first[:-1].copy(), candidates.first[:-1] + 1
    kept, overdue, others = _in_order(jobs, candidates, demand, available, settings, unchanged)
    may_start = np.ones(len(jobs), dtype=bool)
    wanted, same = least.copy(), list(unchanged)
    wanted[same] = present_rows(jobs, candidates)[same]
    taken, available = in_turn(demand[wanted[kept]], available)
    row[kept[taken]] = wanted[kept[taken]]
    for j in overdue:
        if (demand[least[j]] <= available + TOLERANCE).all():
            row[j], available = least[j], available - demand[least[j]]
            continue
        may_start = jobs.has_tasks | (row > candidates.first[:-1])
        available = np.maximum(available - demand[least[j]], 0.0)
        break
    open_to = others[may_start[others]]
    if (demand[least[open_to]].sum(axis=0) <= available + TOLERANCE).all():
        sure = open_to[jobs.has_tasks[open_to] | ~is_known(jobs)[open_to]]
        row[sure] = least[sure]
        available = available - demand[least[sure]].sum(axis=0)
    return Guaranteed(row, may_start, available)


def in_turn(demand: FloatArray, available: FloatArray) -> tuple[BoolArray, FloatArray]:
    """(m,) which rows of `demand` (m, r) fit, taken in order, in `available` (r,); and what is left of that."""
    taken = np.zeros(len(demand), dtype=bool)
    left = np.arange(len(demand))
    while len(left):
        total = demand[left].cumsum(axis=0)
        fits = within(total, available + TOLERANCE)
        count = len(left) if fits.all() else int(np.argmin(fits))
        if count:
            taken[left[:count]], available = True, available - total[count - 1]
        left = left[count:]
        left = left[within(demand[left], available + TOLERANCE)]
    return taken, available


def _in_order(
    jobs: JobColumns,
    candidates: Candidates,
    demand: FloatArray,
    available: FloatArray,
    settings: Settings,
    unchanged: Collection[int],
) -> tuple[IntArray, list[int], IntArray]:
    """Jobs that keep something and waiting jobs that are overdue, both in the order of their turn, and the others."""
    kept = _kept(jobs, candidates, settings, unchanged)
    turn = seconds_of_turn(jobs, candidates, demand, available, settings)
    overdue = np.flatnonzero(turn > 0)
    overdue = overdue[np.lexsort((jobs.id_rank[overdue], -turn[overdue]))]
    is_other = np.ones(len(jobs), dtype=bool)
    is_other[kept] = is_other[overdue] = False
    return kept, overdue.tolist(), is_other.nonzero()[0]


def seconds_of_turn(
    jobs: JobColumns, candidates: Candidates, demand: FloatArray, available: FloatArray, settings: Settings
) -> FloatArray:
    """(n,) seconds since when no other job starts before each of those that wait; 0 or less of those whose turn has not
    come, and of all others. `demand` (k, r) of each candidate, `available` (r,) to these jobs."""
    overdue_by = overdue_seconds(jobs, candidates.least_speed, settings)
    if (overdue_by > 0).any():
        overdue_by = np.minimum(overdue_by, jobs.column("waited_seconds") - backlog(jobs, candidates.work))
    # A job that does not fit even alone must not block others.
    possible = within(demand.take(candidates.first[:-1] + 1, axis=0), available + TOLERANCE)
    waits = ~(jobs.has_tasks | (jobs.column("claimed") > 0))
    return np.where(waits & possible, overdue_by, 0.0)


def is_known(jobs: JobColumns) -> BoolArray:
    """(n,) whether the length of a job and its speeds are known."""
    return np.asarray((jobs.column("learning") == 0) & ~np.isnan(jobs.remaining))


def overdue_seconds(jobs: JobColumns, least_speed: FloatArray, settings: Settings) -> FloatArray:
    """(n,) seconds by which a waiting job exceeds its patience; negative before that. `least_speed`: see `patience`."""
    waited, least = jobs.column("waited_seconds"), settings.patience_seconds
    return waited - np.where(waited <= least, least, patience(jobs, least_speed, settings))


def backlog(jobs: JobColumns, work: FloatArray) -> FloatArray:
    """(n,) seconds for which all that the jobs share would be in use by what is left of the others that were there when
    the wait of each began. `work` (n,) is what is left of each, see `weights.remaining_work`.

    In any order some job waits for so long; one that waits for longer is passed by jobs that came later. As these do
    not count, no wait is without bound.
    """
    submitted_at, since = jobs.column("submitted_at"), np.array([one.job.waits_since for one in jobs])
    order = submitted_at.argsort(kind="stable")
    sums = np.concatenate([[0.0], work[order].cumsum()])
    there = sums[submitted_at[order].searchsorted(since, side="right")]
    return np.asarray(there - np.where(submitted_at <= since, work, 0.0))


def patience(jobs: JobColumns, least_speed: FloatArray, settings: Settings) -> FloatArray:
    """(n,) seconds that a job waits at most before no other passes it.

    The longer a job takes and the lower its priority, the longer it may wait: a fixed patience plus a part of the time
    that it needs at its minimum, where it does `least_speed` (n,) steps per second, divided by its priority; but never
    longer than `most_patience_seconds`.
    """
    longer = settings.patience_seconds + settings.patience_part * _needed(jobs, least_speed) / jobs.column("priority")
    return np.minimum(longer, max(settings.most_patience_seconds, settings.patience_seconds))


def _needed(jobs: JobColumns, least_speed: FloatArray) -> FloatArray:
    """(n,) seconds that are left of each job at its minimum, or what stands in where that is not known."""
    return np.where(jobs.is_unknown, jobs.column("typical_seconds"), jobs.remaining / least_speed)


@dataclass(frozen=True, slots=True)
class Turn:
    """From when on no other job starts before a waiting one, at the earliest, and by what."""

    in_seconds: float
    """Negative: it is so already. Later if the `backlog` of the job takes longer."""
    patience: float
    """Seconds that it waits until then, in all."""


def turn_of(outlook: Outlook, settings: Settings) -> Turn:
    """The turn of a waiting job, by the rule of the rounds."""
    jobs = JobColumns.of([outlook])
    speed = np.array([outlook.speeds.at(outlook.minimum) if outlook.speeds.is_known else np.nan])
    waits = float(patience(jobs, speed, settings)[0])
    return Turn(waits - outlook.waited_seconds, waits)


def _kept(jobs: JobColumns, candidates: Candidates, settings: Settings, unchanged: Collection[int]) -> IntArray:
    """Jobs with a claim, then running jobs that keep something: where not all can, because nodes are gone or quotas
    take the room, those of high priority first, then those that a pause costs most work, then the longest running."""
    claimed, allocated_seconds = jobs.column("claimed"), jobs.column("allocated_seconds")
    keeps = (claimed > 0) | (jobs.has_tasks & (allocated_seconds < settings.least_run_seconds))
    # To train again what it has lost would take longer than to wait for its end.
    keeps |= jobs.has_tasks & (jobs.column("unsaved_seconds") > candidates.seconds_left)
    keeps[list(unchanged)] = True
    kept = keeps.nonzero()[0]
    keys = jobs.id_rank, -allocated_seconds, -jobs.column("unsaved_seconds"), -jobs.column("priority"), -claimed
    return kept[np.lexsort([each[kept] for each in keys])]


def present_rows(jobs: JobColumns, candidates: Candidates) -> IntArray:
    """(n,) the row of what each job has; of its minimum if that is no candidate."""
    rows = candidates.first[:-1] + 1
    workers, servers = jobs.pairs("").T
    # Jobs without tasks have no present row.
    same = candidates.workers == np.where(jobs.has_tasks, workers, -1)[candidates.job]
    same &= candidates.servers == servers[candidates.job]
    places = same.nonzero()[0]
    rows[candidates.job[places]] = places
    return rows
