"""The sizes that a job may grow through, from nothing over its minimum to its maximum, with the speed of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optimus_models.scaling_curve import ScalingCurve, predict_many
from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.contenders import Contenders, FloatArray, IntArray
from optimus_scheduler.speed_table import SpeedTable
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import Resources

_STEPS = np.array([(1, 0), (0, 1), (1, 1)])
"""One worker, one server, or one of both: some jobs gain nothing from either alone (Optimus reference, 3.5)."""
_TOGETHER = 1000
"""Jobs that climb at once: more of them leave the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """One job's sizes in the order in which it grows, nothing first; arrays of one length."""

    workers: IntArray
    servers: IntArray
    speeds: FloatArray
    """Steps per second."""
    costs: FloatArray
    """Shares of the cluster: that of a worker and that of a server, each times their number."""
    best_speed_per_share: float


class Ladders:
    """The ladders of several jobs, and what a worker and a server of each takes of the cluster."""

    def __init__(self, outlooks: Sequence[Outlook], capacity: Resources) -> None:
        outlooks = Contenders.of(outlooks)
        self.worker_shares, self.server_shares = _shares(outlooks, capacity)
        # Remembered with the speeds, which live as long as nothing new is measured: most ladders are those of the
        # round before.
        self.each = [one.speeds.latest_ladder(one.job.spec, capacity) for one in outlooks]
        unknown = [j for j, ladder in enumerate(self.each) if ladder is None]
        keys = dict(zip(unknown, self._keys(outlooks, unknown), strict=True)) if unknown else {}
        missing: dict[tuple[int, object], list[int]] = {}
        for j in unknown:
            self.each[j] = outlooks[j].speeds.ladders.get(keys[j])
            if self.each[j] is None:
                missing.setdefault((id(outlooks[j].speeds), keys[j]), []).append(j)
        rows = [same[0] for same in missing.values()]
        built = _build([outlooks[j] for j in rows], self.worker_shares[rows], self.server_shares[rows])
        for same, ladder in zip(missing.values(), built, strict=True):
            outlooks[same[0]].speeds.remember(keys[same[0]], ladder)
            for j in same:
                self.each[j] = ladder
        for j in unknown:
            outlooks[j].speeds.latest = (outlooks[j].job.spec, capacity, self.each[j])

    def _keys(self, jobs: Contenders, rows: Sequence[int]) -> list[tuple[float, ...]]:
        """All that the ladders of these jobs depend on beside the speeds."""
        columns = (*jobs.pairs("least_").T, *jobs.pairs("most_").T, self.worker_shares, self.server_shares)
        return list(zip(*(column[list(rows)].tolist() for column in columns), strict=True))


def _shares(jobs: Contenders, capacity: Resources) -> tuple[FloatArray, FloatArray]:
    """Dominant share of one worker and of one server of each job."""
    worker, server = jobs.worker_kind, jobs.server_kind
    shares = jobs.kinds.dominant_shares(capacity)
    return shares[worker], shares[server]


def _build(outlooks: Sequence[Outlook], worker_shares: FloatArray, server_shares: FloatArray) -> list[Ladder]:
    """A job of which only one role can grow has no choice of steps; the others climb together."""
    straight = np.array([_is_straight(one) for one in outlooks], dtype=bool)
    built: dict[int, Ladder] = {}
    for rows, build in ((np.flatnonzero(straight), _straight), (np.flatnonzero(~straight), _climb)):
        if len(rows):
            ladders = build([outlooks[j] for j in rows.tolist()], worker_shares[rows], server_shares[rows])
            built.update(zip(rows.tolist(), ladders, strict=True))
    return [built[j] for j in range(len(outlooks))]


def _is_straight(outlook: Outlook) -> bool:
    worker, server = outlook.job.spec.worker, outlook.job.spec.server
    return server.minimum == server.maximum or worker.minimum == worker.maximum


def _straight(outlooks: Sequence[Outlook], worker_shares: FloatArray, server_shares: FloatArray) -> list[Ladder]:
    """All sizes from minimum to maximum."""
    sizes = [_straight_sizes(one) for one in outlooks]
    workers, servers = (np.concatenate(column) for column in zip(*sizes, strict=True))
    job = np.repeat(np.arange(len(outlooks)), [len(each[0]) for each in sizes])
    costs = workers * worker_shares[job] + servers * server_shares[job]
    return _cut(job, workers, servers, _many_speeds(outlooks, job, workers, servers), costs)


def _straight_sizes(outlook: Outlook) -> tuple[IntArray, IntArray]:
    least, most = outlook.minimum, outlook.maximum
    count = max(most.workers - least.workers, most.servers - least.servers)
    steps = np.arange(-1, count + 1)
    workers = least.workers + np.minimum(steps, most.workers - least.workers)
    servers = least.servers + np.minimum(steps, most.servers - least.servers)
    workers[0] = servers[0] = 0
    return workers, servers


def _many_speeds(outlooks: Sequence[Outlook], job: IntArray, workers: IntArray, servers: IntArray) -> FloatArray:
    """Speeds of flat arrays of sizes, sorted by job; curves over workers alone, which are most, in one go."""
    speeds = np.zeros(len(job))
    models = [one.speeds.model for one in outlooks]
    is_curve = [
        isinstance(m, ScalingCurve) and type(one.speeds) is Speeds for m, one in zip(models, outlooks, strict=True)
    ]
    curves = [model for model, curve in zip(models, is_curve, strict=True) if curve and isinstance(model, ScalingCurve)]
    number = np.cumsum(is_curve) - 1
    here = np.array(is_curve, dtype=bool)[job] & (workers > 0)
    speeds[here] = predict_many(curves, number[job[here]], workers[here].astype(np.float64))
    first = np.searchsorted(job, np.arange(len(outlooks) + 1))
    for j in np.flatnonzero(~np.array(is_curve, dtype=bool)).tolist():
        own = slice(int(first[j]) + 1, int(first[j + 1]))
        speeds[own] = outlooks[j].speeds.many(workers[own], servers[own])
    return speeds


def _cut(job: IntArray, workers: IntArray, servers: IntArray, speeds: FloatArray, costs: FloatArray) -> list[Ladder]:
    """The ladders of jobs whose rungs lie below each other, nothing first."""
    first = np.flatnonzero(np.concatenate([[True], job[1:] != job[:-1]]))
    per_share = np.full(len(speeds), -np.inf)
    np.divide(speeds, costs, out=per_share, where=workers + servers > 0)
    best = np.maximum.reduceat(per_share, first).tolist()
    bounds = [*first.tolist(), len(job)]
    return [
        Ladder(workers[a:b], servers[a:b], speeds[a:b], costs[a:b], each)
        for a, b, each in zip(bounds, bounds[1:], best, strict=False)
    ]


def _climb(outlooks: Sequence[Outlook], worker_shares: FloatArray, server_shares: FloatArray) -> list[Ladder]:
    """Each job climbs by the step that gains most speed per share, up to its maximum; many jobs at once."""
    groups = [slice(first, first + _TOGETHER) for first in range(0, len(outlooks), _TOGETHER)]
    return [
        each for group in groups for each in _climb_at_once(outlooks[group], worker_shares[group], server_shares[group])
    ]


def _climb_at_once(outlooks: Sequence[Outlook], worker_shares: FloatArray, server_shares: FloatArray) -> list[Ladder]:
    jobs = Contenders(outlooks)
    least, most = jobs.pairs("least_"), jobs.pairs("most_")
    table = SpeedTable([one.speeds for one in outlooks], most)
    climbers = _Climbers(table, most, np.outer(_STEPS[:, 0], worker_shares) + np.outer(_STEPS[:, 1], server_shares))
    everybody = np.arange(len(outlooks))
    at = _Rung(everybody, least[:, 0], least[:, 1], table.at(everybody, least[:, 0], least[:, 1]))
    nothing = np.zeros_like(everybody)
    rungs = [_Rung(everybody, nothing, nothing, np.zeros(len(outlooks))), at]
    while len((at := climbers.next(at)).job):
        rungs.append(at)
    job, workers, servers, speeds = (np.concatenate(column) for column in zip(*rungs, strict=True))
    order = np.argsort(job, kind="stable")
    job, workers, servers, speeds = job[order], workers[order], servers[order], speeds[order]
    return _cut(job, workers, servers, speeds, workers * worker_shares[job] + servers * server_shares[job])


class _Rung(NamedTuple):
    """Where some jobs are; arrays of one length."""

    job: IntArray
    workers: IntArray
    servers: IntArray
    speeds: FloatArray


class _Climbers:
    """Takes jobs from one rung to the next."""

    def __init__(self, table: SpeedTable, most: IntArray, costs: FloatArray) -> None:
        """`most` (n, 2) workers and servers; `costs` (steps, n) shares of each step."""
        self._table, self._most, self._costs = table, most.T, costs

    def next(self, rung: _Rung) -> _Rung:
        """One rung further up, those that are at their maximum left out."""
        most_workers, most_servers = self._most[:, rung.job]
        more_workers, more_servers = rung.workers < most_workers, rung.servers < most_servers
        stays = np.flatnonzero(more_workers | more_servers)
        job = rung.job[stays]
        # (steps, n); what is not allowed is looked up at the maximum, and not chosen.
        allowed = np.stack([more_workers, more_servers, more_workers & more_servers])[:, stays]
        workers = np.minimum(rung.workers[stays] + _STEPS[:, :1], most_workers[stays])
        servers = np.minimum(rung.servers[stays] + _STEPS[:, 1:], most_servers[stays])
        reached = self._table.at(np.tile(job, len(_STEPS)), workers.reshape(-1), servers.reshape(-1))
        reached = reached.reshape(workers.shape)
        gain = np.where(allowed, (reached - rung.speeds[stays]) / self._costs[:, job], -np.inf)
        best = gain.argmax(axis=0), np.arange(len(job))  # of equal gains the first step
        return _Rung(job, workers[best], servers[best], reached[best])
