"""The earliest starts of the jobs that wait, if none of the others grows: by all the ends that free capacity. Pure.

A trajectory in which every job ends as it is likeliest to names one end that a waiting job starts with. Another job may
well end sooner: of many doubtful ends the first comes before the likeliest of them. So ends are drawn together, and the
waiting jobs take the capacity that they free, in their order, the first ones node by node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model import TOLERANCE, Resources

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DRAWS = 63
"""Of all ends together."""
BY_NODE = 8
"""So many jobs, the first that wait, are placed on nodes; those behind them by what all nodes have together."""
_IN_TURN = 4
"""Where a job has room by the sum of all nodes, it mostly fits on them, too: so many ends are tried one by one."""
_SEED = 0


class Needed(NamedTuple):
    """The tasks that a waiting job starts with."""

    worker: Resources
    workers: int
    server: Resources
    servers: int

    @property
    def total(self) -> Resources:
        return self.worker * self.workers + self.server * self.servers


class EarliestStarts(NamedTuple):
    """Of the jobs that wait, in their order, in each draw."""

    at: FloatArray
    """(n, DRAWS) instants at which what each needs is free, with what those before it take; inf where it does not fit
    even after all ends."""
    by: IntArray
    """(n, DRAWS) whose end that is, by its place among the jobs with tasks; -1: nobody's."""
    ranks: IntArray
    """(jobs with tasks, DRAWS): where the drawn end of each is among its own, from 0 to DRAWS - 1."""


def earliest_starts(
    now: float,
    free: Mapping[str, Resources],
    allocated: Sequence[Sequence[tuple[str, Resources]]],
    ends: Sequence[FloatArray],
    needed: Sequence[Needed],
) -> EarliestStarts:
    """When what each waiting job needs is free, with what those before it take, and by whose end.

    Args:
        now: the present.
        free: what nobody holds now, by node.
        allocated: the node of each task of each job with tasks, and what it holds there; other nodes free nothing.
        ends: equally likely instants of its end, for each of these; inf where none is known.
        needed: by the jobs that wait, in their order.

    Returns:
        Instants not before `now`.
    """
    tasks = [(job, node, each) for job, there in enumerate(allocated) for node, each in there if node in free]
    asked = [each for one in needed for each in (one.worker, one.server)]
    gpu_types = sorted({gpu_type for each in (*(task[2] for task in tasks), *asked) for gpu_type in each.gpus})
    number = {node: index for index, node in enumerate(free)}
    held = _Held(
        np.array([job for job, _, _ in tasks], dtype=np.int64),
        np.array([number[node] for _, node, _ in tasks], dtype=np.int64),
        _columns([each for _, _, each in tasks], gpu_types),
    )
    now_free = _columns(list(free.values()), gpu_types)
    each_needs = [(_columns([one.worker, one.server], gpu_types), (one.workers, one.servers)) for one in needed]
    by_job = np.zeros((len(allocated), len(gpu_types) + 2))
    np.add.at(by_job, held.job, held.amounts)
    ranks = _ranks(len(ends))
    coming, order = _together(ends, ranks)
    freed = np.cumsum(by_job[order], axis=1)  # (DRAWS, n, kinds)
    freed = np.concatenate([np.zeros((DRAWS, 1, by_job.shape[1])), freed], axis=1) + now_free.sum(axis=0)
    at = np.concatenate([np.full((DRAWS, 1), now), np.maximum(coming, now), np.full((DRAWS, 1), np.inf)], axis=1)
    totals = _columns([one.total for one in needed], gpu_types)
    whose = np.concatenate([np.full((DRAWS, 1), -1), order, np.full((DRAWS, 1), -1)], axis=1)
    found, by = np.empty((len(needed), DRAWS)), np.empty((len(needed), DRAWS), dtype=np.int64)
    for draw, (free_by_kind, instants) in enumerate(zip(freed.transpose(0, 2, 1), at, strict=True)):
        first = _by_sum(free_by_kind, np.cumsum(totals, axis=0))
        room = _Room(now_free, held, np.argsort(order[draw]), free_by_kind)
        for job, (sizes, counts) in enumerate(each_needs[:BY_NODE]):
            first[job] = room.first_end(sizes, counts, totals[job])
        found[:, draw], by[:, draw] = instants[first], whose[draw, first]
    by[~np.isfinite(found)] = -1
    return EarliestStarts(found, by, ranks)


def drawn(instants: FloatArray, ranks: IntArray) -> FloatArray:
    """(DRAWS,) of equally likely instants (n,), each about equally often. `ranks` (DRAWS,): a permutation."""
    return np.sort(instants)[ranks * len(instants) // DRAWS]


def _ranks(n: int) -> IntArray:
    """(n, DRAWS) permutations, independent of each other."""
    random = np.random.default_rng(_SEED)
    return np.array([random.permutation(DRAWS) for _ in range(n)], dtype=np.int64).reshape(n, DRAWS)


class _Held(NamedTuple):
    """By tasks: whose it is, where it is, and what it holds (n, kinds)."""

    job: IntArray
    node: IntArray
    amounts: FloatArray


class _Room:
    """What is free on each node after so many ends, in one order of the ends, less what waiting jobs have taken."""

    def __init__(self, free: FloatArray, held: _Held, place: IntArray, free_by_kind: FloatArray) -> None:
        """`free`: (nodes, kinds) now. `place`: of each job among the ends. `free_by_kind`: (kinds, 1 + ends), of all
        nodes together."""
        self._free, self._held, self._place = free.copy(), held, place[held.job]
        self._together = free_by_kind.copy()

    def first_end(self, sizes: FloatArray, counts: tuple[int, int], total: FloatArray) -> int:
        """After how many ends there are nodes for these tasks, which are taken; 1 + ends: never. `sizes`: (2, kinds) of
        a worker and a server."""
        n_ends = int(self._together.shape[1] - 1)
        after = least = int(_by_sum(self._together, total[None])[0])
        while after <= n_ends:
            taken = _taken(self._after(after), sizes, counts)
            if taken is not None:
                self._free -= taken
                self._together -= total[:, None]
                return after
            after += 1
            if after == least + _IN_TURN:  # what is free on each node only grows: until they may fit they do not
                after = bisect_left(
                    range(n_ends + 1), True, after, key=lambda n: _may_fit(self._after(n), sizes, counts)
                )
        return n_ends + 1

    def _after(self, ends: int) -> FloatArray:
        """(nodes, kinds)"""
        if not ends:
            return self._free
        gone, (n, kinds) = np.flatnonzero(self._place < ends), self._free.shape
        cells = (self._held.node[gone, None] * kinds + np.arange(kinds)).ravel()
        freed: FloatArray = np.zeros(n * kinds)
        freed += np.bincount(cells, self._held.amounts[gone].ravel(), n * kinds)
        return self._free + freed.reshape(n, kinds)


def _taken(free: FloatArray, sizes: FloatArray, counts: tuple[int, int]) -> FloatArray | None:
    """(nodes, kinds) that so many workers and servers take, on as few nodes as each role can; None: no room."""
    taken = np.zeros_like(free)
    for size, count in zip(sizes, counts, strict=True):
        if not count:
            continue
        fits = _how_many(free - taken, size, count)
        roomiest = int(fits.argmax())
        if fits[roomiest] >= count:
            taken[roomiest] += count * size
            continue
        most_first = np.argsort(-fits, kind="stable")
        after = np.cumsum(np.maximum(fits[most_first], 0.0))
        if after[-1] < count:
            return None
        taken[most_first] += np.diff(np.minimum(after, count), prepend=0.0)[:, None] * size
    return taken


def _may_fit(free: FloatArray, sizes: FloatArray, counts: tuple[int, int]) -> bool:
    """Whether there is room for the tasks of each role alone, and for as many as both have of what each of them needs
    at least. Without it there are no nodes for them; with it, workers may still take the room of the servers."""
    # Twice the tolerance: tasks of both roles on one node, each within it, need no more than that.
    alone = all(_has_room(free, size, count) for size, count in zip(sizes, counts, strict=True))
    return alone and _has_room(free + TOLERANCE, sizes.min(axis=0), sum(counts))


def _has_room(free: FloatArray, size: FloatArray, count: int) -> bool:
    """Whether nodes have room for so many tasks of this size."""
    return bool(np.maximum(_how_many(free, size, count), 0.0).sum() >= count)


def _how_many(free: FloatArray, size: FloatArray, most: int) -> FloatArray:
    """(nodes,) tasks of this size for which there is room on each; `most` at most, below 0 where too much is taken."""
    asked = np.flatnonzero(size)
    fits: FloatArray = np.floor((free[:, asked] + TOLERANCE) / size[asked]).min(axis=1, initial=float(most))
    return fits


def _by_sum(free: FloatArray, totals: FloatArray) -> IntArray:
    """(n,) ends after which all nodes together have so much of each kind free. `free`: (kinds, 1 + ends), `totals`:
    (n, kinds). Nobody takes anything back: what is free only grows, so it is found by bisection."""
    columns = zip(free, totals.T - TOLERANCE, strict=True)
    found: IntArray = np.max([np.searchsorted(*each) for each in columns], axis=0)
    return found


def _together(ends: Sequence[FloatArray], ranks: IntArray) -> tuple[FloatArray, IntArray]:
    """(DRAWS, n) ends that come together, in order of time, and (DRAWS, n) whose they are."""
    each_drawn = [drawn(*each) for each in zip(ends, ranks, strict=True)]
    found = np.stack(each_drawn, axis=1) if ends else np.zeros((DRAWS, 0))
    order = np.argsort(found, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1), order


def _columns(amounts: Sequence[Resources], gpu_types: Sequence[str]) -> FloatArray:
    """(n, kinds): cores, bytes, and GPUs of each type."""
    rows = [[each.cpu, each.memory_bytes, *(each.gpus.get(gpu_type, 0) for gpu_type in gpu_types)] for each in amounts]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(gpu_types) + 2)
