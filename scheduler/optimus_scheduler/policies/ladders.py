"""The sizes that a job may grow through, from nothing over its minimum to its maximum, with the speed of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.speed_table import SpeedTable
from optimus_scheduler.types import Resources

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_STEPS = ((1, 0), (0, 1), (1, 1))
"""One worker, one server, or one of both: some jobs gain nothing from either alone (Optimus reference, 3.5)."""


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """One job's sizes in the order in which it grows, nothing first; arrays of one length."""

    workers: IntArray
    servers: IntArray
    speeds: FloatArray
    """Steps per second."""
    costs: FloatArray
    """Shares of the cluster: that of a worker and that of a server, each times their number."""

    @property
    def best_speed_per_share(self) -> float:
        return float((self.speeds[1:] / self.costs[1:]).max())


class Ladders:
    """The ladders of several jobs, and what a worker and a server of each takes of the cluster."""

    def __init__(self, outlooks: Sequence[Outlook], capacity: Resources) -> None:
        self.worker_shares, self.server_shares = _shares(outlooks, capacity)
        keys = [
            (one.minimum, one.maximum, worker, server)
            for one, worker, server in zip(
                outlooks, self.worker_shares.tolist(), self.server_shares.tolist(), strict=True
            )
        ]
        # Remembered with the speeds, which live as long as nothing new is measured: most ladders are those of the
        # round before.
        known: dict[tuple[int, object], Ladder] = {}
        missing: dict[tuple[int, object], int] = {}
        for j, (one, key) in enumerate(zip(outlooks, keys, strict=True)):
            ladder = one.speeds.ladders.get(key)
            if ladder is None:
                missing[id(one.speeds), key] = j
            else:
                known[id(one.speeds), key] = ladder
        rows = list(missing.values())
        built = _build([outlooks[j] for j in rows], self.worker_shares[rows], self.server_shares[rows])
        for j, ladder in zip(rows, built, strict=True):
            known[id(outlooks[j].speeds), keys[j]] = ladder
            outlooks[j].speeds.remember(keys[j], ladder)
        self.each: list[Ladder] = [known[id(one.speeds), key] for one, key in zip(outlooks, keys, strict=True)]


def _shares(outlooks: Sequence[Outlook], capacity: Resources) -> tuple[FloatArray, FloatArray]:
    """Dominant share of one worker and of one server of each job; asked once for jobs that ask for the same."""
    known: dict[int, float] = {}

    def share(resources: Resources) -> float:
        if id(resources) not in known:
            known[id(resources)] = min(resources.dominant_share(capacity), 1.0)
        return known[id(resources)]

    workers = np.array([share(one.job.spec.worker.resources) for one in outlooks])
    servers = np.array([share(one.job.spec.server.resources) for one in outlooks])
    return np.maximum(workers, 1e-9), np.maximum(servers, 1e-9)


def _build(outlooks: Sequence[Outlook], worker_shares: FloatArray, server_shares: FloatArray) -> list[Ladder]:
    """A job of which only one role can grow has no choice of steps; the others climb together."""
    straight = np.array([_is_straight(one) for one in outlooks], dtype=bool)
    climbing = np.flatnonzero(~straight)
    climbed = iter(_climb([outlooks[j] for j in climbing.tolist()], worker_shares[climbing], server_shares[climbing]))
    shares = zip(worker_shares.tolist(), server_shares.tolist(), strict=True)
    return [
        _straight(one, *each) if is_straight else next(climbed)
        for one, each, is_straight in zip(outlooks, shares, straight.tolist(), strict=True)
    ]


def _is_straight(outlook: Outlook) -> bool:
    least, most = outlook.minimum, outlook.maximum
    return least.servers == most.servers or least.workers == most.workers


def _straight(outlook: Outlook, worker_share: float, server_share: float) -> Ladder:
    least, most = outlook.minimum, outlook.maximum
    workers = np.arange(least.workers, most.workers + 1)
    servers = np.arange(least.servers, most.servers + 1)
    workers, servers = np.broadcast_arrays(workers, servers)
    speeds = np.concatenate([[0.0], outlook.speeds.many(workers, servers)])
    workers, servers = np.concatenate([[0], workers]), np.concatenate([[0], servers])
    return Ladder(workers, servers, speeds, workers * worker_share + servers * server_share)


def _climb(outlooks: Sequence[Outlook], worker_shares: FloatArray, server_shares: FloatArray) -> list[Ladder]:
    """All jobs climb at once, each always by the step that gains most speed per share, up to its maximum."""
    if not outlooks:
        return []
    table = SpeedTable([one.speeds for one in outlooks])
    least = np.array([(one.minimum.workers, one.minimum.servers) for one in outlooks])
    most = np.array([(one.maximum.workers, one.maximum.servers) for one in outlooks])
    climbing = np.arange(len(outlooks))
    rungs = _Rungs(worker_shares, server_shares)
    rungs.add(climbing, np.zeros_like(least), np.zeros(len(outlooks)))
    at, speeds = least, table.at(climbing, least[:, 0], least[:, 1])
    while True:
        rungs.add(climbing, at, speeds)
        stays = (at < most[climbing]).any(axis=1)
        climbing, at, speeds = climbing[stays], at[stays], speeds[stays]
        if not len(climbing):
            return rungs.ladders()
        at, speeds = _best_steps(table, climbing, at, speeds, most, worker_shares, server_shares)


def _best_steps(
    table: SpeedTable,
    climbing: IntArray,
    at: IntArray,
    speeds: FloatArray,
    most: IntArray,
    worker_shares: FloatArray,
    server_shares: FloatArray,
) -> tuple[IntArray, FloatArray]:
    """The size that each job goes to, (n, 2), and its speed there."""
    limits = most[climbing]
    best = np.full(len(climbing), -np.inf)
    to, speed_there = at.copy(), speeds.copy()
    for workers, servers in _STEPS:
        candidate = at + np.array([workers, servers])
        allowed = np.flatnonzero((candidate <= limits).all(axis=1))
        reached = table.at(climbing[allowed], candidate[allowed, 0], candidate[allowed, 1])
        cost = workers * worker_shares[climbing[allowed]] + servers * server_shares[climbing[allowed]]
        gain = (reached - speeds[allowed]) / cost
        better = gain > best[allowed]
        chosen = allowed[better]
        best[chosen], to[chosen], speed_there[chosen] = gain[better], candidate[chosen], reached[better]
    return to, speed_there


class _Rungs:
    """Collects the rungs of all jobs, a round of climbing at a time."""

    def __init__(self, worker_shares: FloatArray, server_shares: FloatArray) -> None:
        self._shares = worker_shares, server_shares
        self._jobs: list[IntArray] = []
        self._sizes: list[IntArray] = []
        self._speeds: list[FloatArray] = []

    def add(self, jobs: IntArray, sizes: IntArray, speeds: FloatArray) -> None:
        self._jobs.append(jobs)
        self._sizes.append(sizes)
        self._speeds.append(speeds)

    def ladders(self) -> list[Ladder]:
        jobs = np.concatenate(self._jobs)
        order = np.argsort(jobs, kind="stable")
        jobs, speeds = jobs[order], np.concatenate(self._speeds)[order]
        workers, servers = np.concatenate(self._sizes)[order].T
        costs = workers * self._shares[0][jobs] + servers * self._shares[1][jobs]
        ends = np.cumsum(np.bincount(jobs))[:-1]
        columns = (np.split(column, ends) for column in (workers, servers, speeds, costs))
        return [Ladder(*rungs) for rungs in zip(*columns, strict=True)]
