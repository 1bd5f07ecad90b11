"""Who had how much of the cluster over time, on an even grid: what the page draws as stacked areas. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model import Resources
from optimus_service.observe.spec import readable_spec
from optimus_service.store.records import JobRecord, MembershipRecord

FloatArray = NDArray[np.float64]

Span = tuple[float, float | None]
"""When a task was started and when it had exited, POSIX seconds; None: it has not."""

MAX_SERIES = 10
"""Jobs with an area of their own: as many colours as can be told apart. The others share one."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """From each of `at` (POSIX seconds) to the next, in the mean: what jobs held, and how many there were; at the last
    one then."""

    at: tuple[float, ...]
    jobs: tuple[JobRecord, ...]
    """Those with a series, largest first. There are `MAX_SERIES`: those that hold something now, then the largest."""
    allocated: tuple[tuple[float, ...], ...]
    """By series."""
    others: tuple[float, ...]
    training: tuple[float, ...]
    waiting: tuple[float, ...]


def unit_of(capacity: Resources) -> str:
    """What is counted: `gpus` on a cluster that has any, else `cpu_cores`."""
    return "gpus" if sum(capacity.gpus.values()) > 0 else "cpu_cores"


def timeline(
    jobs: Sequence[JobRecord],
    memberships: Mapping[str, Sequence[MembershipRecord]],
    unit: str,
    since: float,
    now: float,
    n_points: int,
    worked: Mapping[str, Sequence[Span]] = MappingProxyType({}),
) -> Timeline:
    """The last `now - since` seconds at `n_points` evenly spaced moments: what jobs held, and how many there were, in
    the mean from each to the next one, so that none that came and went between two is missing, and now at the last.

    `worked`: when each worker was there, by job; of a job that is not in it, for as long as its memberships say. After
    an error nobody is left who would say that the membership is over.
    """
    grid = np.linspace(since, now, n_points)
    means = {job.id: _means(job, memberships.get(job.id, ()), unit, grid, worked.get(job.id)) for job in jobs}
    allocated = {job_id: held for job_id, (held, _, _) in means.items()}
    training, active = (sum((each[row] for each in means.values()), np.zeros(n_points)) for row in (1, 2))
    largest = sorted(jobs, key=lambda job: (-float(allocated[job.id].sum()), job.created_at, job.id))
    # Those that hold something now come first: a job of the page's bar and list is no "other" of its picture.
    present = [job for job in largest if allocated[job.id].any()]
    kept = {job.id for job in sorted(present, key=lambda job: not allocated[job.id][-1])[:MAX_SERIES]}
    shown = [job for job in present if job.id in kept]
    rest: FloatArray = sum((allocated[job.id] for job in jobs if job not in shown), np.zeros(n_points))
    return Timeline(
        at=tuple(grid.tolist()),
        jobs=tuple(shown),
        allocated=tuple(tuple(allocated[job.id].tolist()) for job in shown),
        others=tuple(rest.tolist()),
        training=_counted(training),
        waiting=_counted(np.maximum(active - training, 0.0)),
    )


def _counted(jobs: FloatArray) -> tuple[float, ...]:
    """Numbers of jobs, without what their means are rounded by."""
    return tuple(np.round(jobs, 6).tolist())


def _means(
    job: JobRecord,
    memberships: Sequence[MembershipRecord],
    unit: str,
    grid: FloatArray,
    worked: Sequence[Span] | None,
) -> FloatArray:
    """What the job's tasks took, whether it had workers and whether it was there (1 or 0), as rows: means from each
    moment of `grid` to the next one, and at the last."""
    changes = [
        job.created_at,
        job.finished_at,
        *(each.at for each in memberships),
        *(at for span in worked or () for at in span),
    ]
    inside = [at for at in changes if at is not None and grid[0] < at < grid[-1]]
    times = np.unique(np.concatenate([grid, inside]))
    there = _there(worked, times)
    held, trains = _allocated(job, memberships, unit, times) * there, _trains(job, memberships, times) & there
    rows: FloatArray = np.array([held, trains, _active(job, times)], dtype=float)
    taken = np.cumsum(rows[:, :-1] * np.diff(times), axis=1)
    taken = np.concatenate([np.zeros((len(rows), 1)), taken], axis=1)
    means = np.diff(taken[:, np.searchsorted(times, grid)], axis=1) / np.diff(grid)
    return np.concatenate([means, rows[:, -1:]], axis=1)


def _there(spans: Sequence[Span] | None, grid: FloatArray) -> NDArray[np.bool_]:
    """Whether any worker was there."""
    found = np.full(len(grid), spans is None)
    for begin, end in spans or ():
        found |= (grid >= begin) & (grid < (np.inf if end is None else end))
    return found


def _active(job: JobRecord, grid: FloatArray) -> NDArray[np.bool_]:
    end = np.inf if job.finished_at is None else job.finished_at
    active: NDArray[np.bool_] = (grid >= job.created_at) & (grid < end)
    return active


def _trains(job: JobRecord, memberships: Sequence[MembershipRecord], grid: FloatArray) -> NDArray[np.bool_]:
    """Whether it had workers, on whatever they ran."""
    begins = np.array([membership.at for membership in memberships])
    has_workers = np.array([False, *(bool(membership.workers) for membership in memberships)])
    return has_workers[np.searchsorted(begins, grid, side="right")] & _active(job, grid)


def _allocated(job: JobRecord, memberships: Sequence[MembershipRecord], unit: str, grid: FloatArray) -> FloatArray:
    """What the job's tasks took at each moment of `grid`."""
    amounts = [0.0, *_amounts(job, memberships, unit)]
    begins = np.array([membership.at for membership in memberships])
    found: FloatArray = np.array(amounts)[np.searchsorted(begins, grid, side="right")]
    return np.where(_active(job, grid), found, 0.0)


def _amounts(job: JobRecord, memberships: Sequence[MembershipRecord], unit: str) -> Iterator[float]:
    spec = readable_spec(job)
    needs = (Resources(), Resources()) if spec is None else (spec.worker.resources, spec.server.resources)
    worker, server = (float(sum(need.gpus.values())) if unit == "gpus" else need.cpu for need in needs)
    for membership in memberships:
        yield worker * len(membership.workers) + server * len(membership.servers)
