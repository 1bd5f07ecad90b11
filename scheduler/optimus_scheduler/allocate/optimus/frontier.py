"""The sizes that a job may grow through, from nothing over its minimum to its maximum, with the speed of each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from optimus_models.speed.scaling import ScalingCurve, predict_many
from optimus_scheduler.allocate.optimus.arrays import FloatArray, IntArray
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.forecast.outlook import Outlook, as_key
from optimus_scheduler.forecast.speeds import FURTHER, Speeds, SpeedTable
from optimus_scheduler.model import Resources

_CROWDED = 0.75
"""Part of them that is still climbing when the others are left behind."""


POINT_BYTES = 4 * 8
"""Of one size in `Frontier.points`."""


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """One job's sizes in the order in which it grows, nothing first."""

    points: bytes
    """(k, 4) 64-bit floats: workers, servers, what they cost, and steps per second. The cost is shares of the cluster:
    that of a worker and that of a server, each times their number. Packed, as a round joins those of thousands of jobs.
    """
    best_speed_per_share: float


class Frontiers:
    """The frontiers of several jobs, and what a worker and a server of each takes of the cluster."""

    def __init__(self, outlooks: Sequence[Outlook], capacity: Resources) -> None:
        outlooks = JobColumns.of(outlooks)
        self.worker_shares, self.server_shares = _shares(outlooks, capacity)
        # Most jobs tell nothing new, and the cluster is the same: they have the frontiers of the round before.
        cluster = _one_of_equals(as_key(capacity))
        steady = [one.steady for one in outlooks]
        known = [each.frontier for each in steady]
        changed = [j for j, each in enumerate(known) if each is None or each[0] is not cluster]
        for j, frontier in zip(changed, self._of(outlooks, changed), strict=True):
            known[j] = steady[j].frontier = cluster, frontier
        self.each: list[Frontier] = [each[1] for each in known if each is not None]
        self.best_speed_per_share = np.array([frontier.best_speed_per_share for frontier in self.each])
        """(n,)"""
        least = outlooks.pairs("least_")
        self.least_shares = least[:, 0] * self.worker_shares + least[:, 1] * self.server_shares
        """(n,) of the cluster, that each takes at its minimum."""

    def of(self, jobs: Sequence[int]) -> Frontiers:
        """Those of these jobs only, by their numbers."""
        found = copy(self)
        found.each = [self.each[j] for j in jobs]
        columns = self.worker_shares, self.server_shares, self.best_speed_per_share, self.least_shares
        found.worker_shares, found.server_shares, found.best_speed_per_share, found.least_shares = (
            each[list(jobs)] for each in columns
        )
        return found

    def speeds_at(self, share: float) -> FloatArray:
        """(n,) steps per second of each job on so much of the cluster, between sizes by a straight line."""
        points = (np.frombuffer(each.points).reshape(-1, 4) for each in self.each)
        return np.array([np.interp(share, each[:, 2], each[:, 3]) for each in points])

    def _of(self, outlooks: JobColumns, changed: Sequence[int]) -> list[Frontier]:
        """The frontiers of these jobs, by their numbers: speeds that several have in common remember them."""
        keys = self._keys(outlooks, changed)
        speeds = [outlooks[j].speeds for j in changed]
        each: list[Frontier | None] = [one.frontiers.get(key) for one, key in zip(speeds, keys, strict=True)]
        missing: dict[tuple[int, object], list[int]] = {}
        for at, found in enumerate(each):
            if found is None:  # by the identity of speeds that live as long as the outlooks
                missing.setdefault((id(speeds[at]), keys[at]), []).append(at)
        if not missing:  # most jobs tell how far they are, and nothing else that is new
            return [frontier for frontier in each if frontier is not None]
        rows = [changed[same[0]] for same in missing.values()]
        wanted = _Wanted([outlooks[j] for j in rows], outlooks.pairs("least_")[rows], outlooks.pairs("most_")[rows])
        built = _build(wanted, self.worker_shares[rows], self.server_shares[rows])
        for same, frontier in zip(missing.values(), built, strict=True):
            speeds[same[0]].remember(keys[same[0]], frontier)
            for at in same:
                each[at] = frontier
        return [frontier for frontier in each if frontier is not None]

    def _keys(self, jobs: JobColumns, changed: Sequence[int]) -> list[tuple[float, ...]]:
        """All that the frontier of each of these jobs depends on beside its speeds."""
        columns = (*jobs.pairs("least_").T, *jobs.pairs("most_").T, self.worker_shares, self.server_shares)
        return list(map(tuple, np.array(columns)[:, changed].T.tolist()))


@lru_cache(maxsize=16)
def _one_of_equals(capacity: object) -> object:
    """The very same for equal ones, so that it is recognised by itself."""
    return capacity


def _shares(jobs: JobColumns, capacity: Resources) -> tuple[FloatArray, FloatArray]:
    """Dominant share of one worker and of one server of each job."""
    worker, server = jobs.worker_shape, jobs.server_shape
    shares = jobs.shapes.dominant_shares(capacity)
    return shares[worker], shares[server]


class _Wanted(NamedTuple):
    """Jobs whose frontiers are not known."""

    jobs: Sequence[Outlook]
    least: IntArray
    """(n, 2) workers and servers."""
    most: IntArray

    def of(self, rows: IntArray) -> _Wanted:
        return _Wanted([self.jobs[j] for j in rows.tolist()], self.least[rows], self.most[rows])


def _build(wanted: _Wanted, worker_shares: FloatArray, server_shares: FloatArray) -> list[Frontier]:
    """A job of which only one role can grow has no choice of steps; the others climb together."""
    straight = (wanted.least == wanted.most).any(axis=1)
    built: dict[int, Frontier] = {}
    for rows, build in ((straight.nonzero()[0], _straight), ((~straight).nonzero()[0], _climb)):
        if len(rows):
            frontiers = build(wanted.of(rows), worker_shares[rows], server_shares[rows])
            built.update(zip(rows.tolist(), frontiers, strict=True))
    return [built[j] for j in range(len(wanted.jobs))]


def _straight(wanted: _Wanted, worker_shares: FloatArray, server_shares: FloatArray) -> list[Frontier]:
    """All sizes from minimum to maximum."""
    steps = (wanted.most - wanted.least).max(axis=1) + 2  # with nothing, and the minimum
    job = np.arange(len(steps)).repeat(steps)
    point = np.arange(len(job)) - (steps.cumsum() - steps)[job]
    sizes = np.minimum(wanted.least[job] + (point - 1)[:, None], wanted.most[job])
    sizes[point == 0] = 0
    workers, servers = sizes.T.copy()
    costs = workers * worker_shares[job] + servers * server_shares[job]
    return _cut(job, workers, servers, _many_speeds(wanted.jobs, job, workers, servers), costs)


def _many_speeds(outlooks: Sequence[Outlook], job: IntArray, workers: IntArray, servers: IntArray) -> FloatArray:
    """Speeds of flat arrays of sizes, sorted by job; curves over workers alone, which are most, in one go."""
    speeds = np.zeros(len(job))
    models = [one.speeds.model for one in outlooks]
    is_curve = np.array(
        [isinstance(m, ScalingCurve) and type(one.speeds) is Speeds for m, one in zip(models, outlooks, strict=True)],
        dtype=bool,
    )
    curves = [model for model, curve in zip(models, is_curve, strict=True) if curve and isinstance(model, ScalingCurve)]
    number = is_curve.cumsum() - 1
    if curves:
        here = is_curve[job] & (workers > 0)
        speeds[here] = predict_many(curves, number[job[here]], workers[here].astype(np.float64))
    first = job.searchsorted(np.arange(len(outlooks) + 1))
    for j in (~is_curve).nonzero()[0].tolist():
        own = slice(int(first[j]) + 1, int(first[j + 1]))
        speeds[own] = outlooks[j].speeds.many(workers[own], servers[own])
    return speeds


def _cut(job: IntArray, workers: IntArray, servers: IntArray, speeds: FloatArray, costs: FloatArray) -> list[Frontier]:
    """The frontiers of jobs whose sizes lie below each other, nothing first."""
    first = np.concatenate([[True], job[1:] != job[:-1]]).nonzero()[0]
    per_share = np.full(len(speeds), -np.inf)
    np.divide(speeds, costs, out=per_share, where=workers + servers > 0)
    best = np.maximum.reduceat(per_share, first).tolist()
    bounds = [*first.tolist(), len(job)]
    points = np.empty((len(job), 4))
    points[:, 0], points[:, 1], points[:, 2], points[:, 3] = workers, servers, costs, speeds
    return [Frontier(points[a:b].tobytes(), each) for a, b, each in zip(bounds, bounds[1:], best, strict=False)]


def _climb(wanted: _Wanted, worker_shares: FloatArray, server_shares: FloatArray) -> list[Frontier]:
    """Each job climbs by the step that gains most speed per share, up to its maximum; all jobs at once."""
    jobs, least, most = wanted
    points = _climbed(SpeedTable([one.speeds for one in jobs], most), least, most, worker_shares, server_shares)
    return _cut(*_by_job(points, len(jobs), worker_shares, server_shares))


def _by_job(
    points: Sequence[_Points], n_jobs: int, worker_shares: FloatArray, server_shares: FloatArray
) -> tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray]:
    """Job, workers, servers, speed and cost, the sizes of a job one after the other, with nothing below the first.

    No job skips a turn before its maximum: the size of the t-th turn is the job's t-th.
    """
    height = np.ones(n_jobs, dtype=np.int64)
    for point in points:
        height[point.job] += 1
    begin = height.cumsum() - height
    job = np.arange(n_jobs).repeat(height)
    workers, servers, speeds = np.zeros_like(job), np.zeros_like(job), np.zeros(len(job))
    for turn, point in enumerate(points, start=1):
        at = begin[point.job] + turn
        workers[at], servers[at], speeds[at] = point.workers, point.servers, point.speeds
    costs = workers * worker_shares[job]
    costs += servers * server_shares[job]
    return job, workers, servers, speeds, costs


class _Points(NamedTuple):
    """Sizes that jobs pass through; arrays of one length."""

    job: IntArray
    workers: IntArray
    servers: IntArray
    speeds: FloatArray


def _climbed(
    table: SpeedTable, least: IntArray, most: IntArray, worker_shares: FloatArray, server_shares: FloatArray
) -> list[_Points]:
    """From `least` (n, 2) workers and servers to `most`, all jobs together, one size after the other."""
    job = np.arange(len(least))
    (workers, servers), most = least.T, most.T
    costs = np.stack([more_w * worker_shares + more_p * server_shares for more_w, more_p in FURTHER])
    speeds = table.at(workers, servers)
    points = [_Points(job, workers, servers, speeds)]
    while True:
        more_workers, more_servers = workers < most[0], servers < most[1]
        goes_on = more_workers | more_servers
        here = goes_on.nonzero()[0]
        if not len(here):
            return points
        if len(here) <= _CROWDED * len(job):  # jobs at their maximum are dropped, but several at a time
            job, workers, servers, speeds = job[here], workers[here], servers[here], speeds[here]
            more_workers, more_servers, goes_on = more_workers[here], more_servers[here], goes_on[here]
            most, costs, table = most[:, here], costs[:, here], table.of(here)
        reached = table.one_further(workers, servers)
        gain = (reached - speeds) / costs
        gain[0][~more_workers] = gain[1][~more_servers] = gain[2][~(more_workers & more_servers)] = -np.inf
        step = gain.argmax(axis=0)  # of equal gains the first step; at the top, none is one
        workers, servers = np.minimum(workers + (step != 1), most[0]), np.minimum(servers + (step != 0), most[1])
        speeds = np.where(goes_on, reached[step, np.arange(len(job))], speeds)
        points.append(_Points(*(column[goes_on] for column in (job, workers, servers, speeds))))
