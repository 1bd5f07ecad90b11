"""Bounds by the area that jobs take: GPUs held, times seconds. docs/bounds.md proves them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_simulator.bounds.needs import Need

FloatArray = NDArray[np.float64]


def squashed_area(needs: Sequence[Need]) -> float:
    """A lower bound on the sum of completion times, seconds: each job at its most efficient size, shortest remaining
    area first, on one machine that does the work of the whole cluster. The best over the resources and mixes of them.
    """
    resources = needs[0].work.usage.shape[1]
    return max(_shortest_first(needs, row) for row in [*np.eye(resources), *mixes(needs)])


_FACTORS = (0.0, 2.0, 1.5, 1.2, 1.1)
"""By which the weight of each resource is changed in turn, and by their inverses."""
_MOST_MIXED = 2000
"""Jobs; of more only equal weights are looked at."""


def mixes(needs: Sequence[Need]) -> list[FloatArray]:
    """Weights of the resources, which sum to 1: equal ones, and of three or more resources those that raise the bound.
    Jobs that may have any of several GPU types need none of them: only all together are scarce.
    """
    resources = needs[0].work.usage.shape[1]
    equal = np.full(resources, 1.0 / resources)
    if resources <= 2 or len(needs) > _MOST_MIXED:
        return [equal]
    best, weights = _shortest_first(needs, equal), equal
    for factor in _FACTORS:
        for resource in range(resources):
            for times in (factor, 1.0 / factor) if factor else (factor,):
                changed = weights.copy()
                changed[resource] *= times
                if changed.sum() > 0:
                    changed /= changed.sum()
                    value = _shortest_first(needs, changed)
                    if value > best:
                        best, weights = value, changed
    return [equal, weights]


def _shortest_first(needs: Sequence[Need], weights: FloatArray) -> float:
    areas = _areas(needs, weights)
    order = sorted(range(len(needs)), key=lambda job: needs[job].trains_from)
    ends = one_machine([needs[job].trains_from for job in order], areas[order].tolist())
    return sum(end - needs[job].submitted_at for job, end in zip(order, ends, strict=True))


def _areas(needs: Sequence[Need], weights: FloatArray) -> FloatArray:
    known: dict[int, float] = {}
    for need in needs:
        if id(need.work) not in known:
            known[id(need.work)] = need.work.least_area(weights)
    return np.array([known[id(need.work)] for need in needs])


def one_machine(releases: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """When each job ends under shortest remaining time first with preemption; `releases` do not fall."""
    ends = [0.0] * len(releases)
    waiting: list[tuple[float, int]] = []
    now, arrived = 0.0, 0
    while waiting or arrived < len(releases):
        if not waiting:
            now = max(now, releases[arrived])
        while arrived < len(releases) and releases[arrived] <= now:
            heapq.heappush(waiting, (lengths[arrived], arrived))
            arrived += 1
        left, job = heapq.heappop(waiting)
        following = releases[arrived] if arrived < len(releases) else np.inf
        if now + left <= following:
            now += left
            ends[job] = now
        else:
            heapq.heappush(waiting, (left - (following - now), job))
            now = float(following)
    return ends


# --- the makespan ----------------------------------------------------------------------------------------------------

_STEPS = 24
"""Halvings of the interval in which the makespan's bound lies."""
_INSTANTS = 64
"""From which what is left of the jobs is looked at, at most."""


def least_makespan(needs: Sequence[Need]) -> float:
    """A lower bound on the time from the first submission to the last end, seconds.

    What a job has left at an instant, even if it had the cluster for itself until then, has to be done before the end;
    all that together takes no more than the cluster between the two. The sooner the end, the larger jobs have to be.
    """
    first = min(need.submitted_at for need in needs)
    alone = max(need.trains_from + need.work.shortest for need in needs)
    begins = np.unique([need.trains_from for need in needs])
    instants = begins[np.linspace(0, len(begins) - 1, min(len(begins), _INSTANTS)).astype(int)]
    latest = alone + sum(need.work.shortest for need in needs)
    found = alone
    for resource in range(needs[0].work.usage.shape[1]):
        left = _Left(needs, resource)
        for begin in _spread(instants):
            if begin < found and left.is_too_much(begin, found):  # else it is not for any later end
                found = _last_too_soon(left, begin, found, latest)
    return found - first


def _spread(instants: FloatArray) -> list[float]:
    """Early, late and middle ones in turn, so that few of them raise what those before them have found."""
    count = len(instants)
    fractions = sorted(range(count), key=lambda place: (place * 0.6180339887498949) % 1.0)
    return [float(instants[place]) for place in fractions]


def _last_too_soon(left: _Left, begin: float, low: float, high: float) -> float:
    """An end that is too soon for what is left at that instant, nearly the last such; `low` is one."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if left.is_too_much(begin, middle):
            low = middle
        else:
            high = middle
    return low


class _Left:
    """The least of one resource that what is left of all jobs takes, between an instant and an end.

    The curves of all kinds of jobs, usage over speed, stand in one: speeds are parts of the kind's fastest, and those
    of the n-th kind begin at 2 n.
    """

    def __init__(self, needs: Sequence[Need], resource: int) -> None:
        works = {id(need.work): need.work for need in needs}
        place = {key: number for number, key in enumerate(works)}
        curves = [cheapest_speeds(work.usage[:, resource], work.speeds()) for work in works.values()]
        fastest = np.array([speeds[-1] or 1.0 for _, speeds in curves])
        kinds = np.array([place[id(need.work)] for need in needs])
        self._speeds = np.concatenate([2.0 * n + speeds / fastest[n] for n, (_, speeds) in enumerate(curves)])
        self._usage = np.concatenate([usage for usage, _ in curves])
        self._begins = np.array([need.trains_from for need in needs])
        self._fastest, self._offsets = fastest[kinds], 2.0 * kinds

    def is_too_much(self, begin: float, end: float) -> bool:
        """Whether it does not fit before the end."""
        left = 1.0 - np.maximum(begin - self._begins, 0.0) * self._fastest
        time = end - np.maximum(self._begins, begin)
        counts = (left > 0) & (time > 0)
        left, time = left[counts], time[counts]
        part = np.minimum(left / (time * self._fastest[counts]), 1.0)
        usage = np.interp(self._offsets[counts] + part, self._speeds, self._usage)
        return float((usage * time).sum()) > end - begin


def cheapest_speeds(usage: FloatArray, speeds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The least usage for every speed, by mixing sizes and idling: corners (usage, speeds), both rising from 0."""
    order = np.lexsort((usage, speeds))
    corners: list[tuple[float, float]] = [(0.0, 0.0)]
    for index in order:
        used, speed = float(usage[index]), float(speeds[index])
        while len(corners) > 1 and _is_above(corners[-2], corners[-1], (used, speed)):
            corners.pop()
        if speed > corners[-1][1]:
            corners.append((used, speed))
    found = np.array(corners)
    return found[:, 0], found[:, 1]


def _is_above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the middle corner takes no less than a mixture of its neighbours."""
    across = (middle[0] - first[0]) * (last[1] - first[1])
    return across >= (last[0] - first[0]) * (middle[1] - first[1])
