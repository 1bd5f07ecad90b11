"""Progressive filling: jobs by their deadlines, each with the least share over time that ends in time.

References: Gu et al., "ElasticFlow: an elastic serverless training platform for distributed deep learning", ASPLOS
2023, section 4.1, and its artifact: where the shares of a job differ over time, the larger ones come last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.forecast.alike_runs import seconds_of_silent_runs, steps_left_like_alike_runs
from optimus_scheduler.forecast.end import epoch_steps
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, TOLERANCE, Allocation, Resources

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_PERIOD_SECONDS = 60.0
"""What a job frees is given to others from the next period on, as in the published simulations."""
_HALF = 0.5 + TOLERANCE


class SizedJob:
    """One job with the sizes that it is planned with, from its minimum to its fastest."""

    def __init__(
        self, outlook: Outlook, sizes: Iterable[Allocation], capacity: Resources, now: float, margin: float = 1.0
    ) -> None:
        """`sizes`: growing. `margin`: its steps are so many times the predicted ones, at their upper bound at most."""
        self.outlook, self.id = outlook, outlook.id
        deadline = outlook.job.spec.deadline_at
        self.has_deadline = deadline is not None
        self.left = math.inf if deadline is None else deadline - now
        """Seconds until the deadline that it is to meet; infinite without one."""
        pairs = [(size, outlook.speeds.at(size)) for size in sizes]
        # A larger size that is no faster is of no use.
        best = np.maximum.accumulate([0.0, *(speed for _, speed in pairs)])
        kept = [pair for pair, before in zip(pairs, best[:-1].tolist(), strict=True) if pair[1] > before]
        self._sizes = [size for size, _ in kept]
        self.speeds = np.array([0.0, *(speed for _, speed in kept)])
        """(1 + m,) steps/s with nothing, and with each size."""
        self.demand = np.array([_amounts(outlook.demand(size), capacity) for size in [NOTHING, *self._sizes]])
        """(1 + m, resources)"""
        self.share = np.array([outlook.demand(size).dominant_share(capacity) for size in [NOTHING, *self._sizes]])
        """(1 + m,) part of the cluster."""
        remaining = outlook.forecast.remaining_steps
        if remaining is None or outlook.speeds.source is None:
            self.steps = max(_believed_seconds(outlook) * float(self.speeds[1]), 1.0)
        else:
            self.steps = max(min(remaining.high, margin * remaining.mean), 1.0)
        self.alone = self.steps / self.speeds[-1]
        """Seconds it takes with its fastest size."""

    @property
    def is_promised(self) -> bool:
        return self.outlook.job.promised_at is not None

    @property
    def top(self) -> int:
        """The number of its fastest size; 0 is nothing."""
        return len(self._sizes)

    def size(self, level: int) -> Allocation:
        return self._sizes[level - 1] if level else NOTHING


def _believed_seconds(outlook: Outlook) -> float:
    """How long a job takes at its minimum of which no forecast tells it: by ended ones like it, else as is typical."""
    silent = seconds_of_silent_runs(outlook.job)
    if silent is not None:
        return silent.mean
    steps = steps_left_like_alike_runs(outlook.job, epoch_steps(outlook.job)) if outlook.speeds.is_known else None
    return outlook.typical_seconds if steps is None else steps.mean / outlook.speeds.at(outlook.minimum)


def _amounts(resources: Resources, capacity: Resources) -> list[float]:
    gpus = (float(resources.gpus.get(gpu_type, 0)) for gpu_type in sorted(capacity.gpus))
    return [resources.cpu, float(resources.memory_bytes), *gpus]


class Piece(NamedTuple):
    """So much of a job's plan: seconds from now, and the number of the size."""

    begin: float
    end: float
    level: int


Pieces = tuple[Piece, ...]


def by_deadline(job: SizedJob) -> tuple[float, float, str]:
    """Sorts jobs by deadline, then by arrival."""
    return job.left, job.outlook.job.submitted_at, job.id


def by_latest_start(job: SizedJob) -> tuple[float, float, str]:
    """Sorts jobs by when they have to begin, then by arrival.

    That is when only the fastest size would be in time: room that comes later does not make up for more waiting (least
    laxity first). Jobs that can use more than half of the cluster run one after the other: on one machine the order of
    the deadlines is the best.
    """
    waits = job.left if job.share[-1] > _HALF else job.left - job.alone
    return waits, job.outlook.job.submitted_at, job.id


def spent(job: SizedJob, pieces: Pieces) -> float:
    """Parts of the cluster times seconds."""
    return float(sum(job.share[level] * (end - begin) for begin, end, level in pieces))


class Found(NamedTuple):
    pieces: Pieces
    in_time: bool


@dataclass
class Plan:
    """What the admitted jobs hold from now until their ends, and what they leave free."""

    free: Free
    pieces: dict[str, Pieces] = field(default_factory=dict)
    late: frozenset[str] = frozenset()


def planned(jobs: Iterable[SizedJob], capacity: Resources) -> Plan:
    """Every job with its least share, in the order of the deadlines."""
    plan, late = Plan(Free(capacity)), []
    for job in sorted(jobs, key=by_deadline):
        pieces, in_time = plan.free.fill(job, job.steps, 0)
        plan.free.take(job, pieces)
        plan.pieces[job.id] = pieces
        late += [] if in_time else [job.id]
    plan.late = frozenset(late)
    return plan


class Free:
    """What is free from now on, in segments of constant amounts; the last one lasts for ever."""

    def __init__(self, capacity: Resources) -> None:
        self._begins = np.zeros(1)  # (segments,) seconds from now
        self._free = np.array([_amounts(capacity, capacity)])  # (segments, resources)

    def first_end(self) -> float:
        """When the present segment ends."""
        return float(self._begins[1]) if len(self._begins) > 1 else math.inf

    def fits_now(self, job: SizedJob, level: int, instead_of: int) -> bool:
        added = job.demand[level] - job.demand[instead_of]
        return bool(np.all(self._free[0] + TOLERANCE >= added))

    def fill(self, job: SizedJob, steps: float, first: int) -> Found:
        """The least share of a job for `steps`, from segment `first` on; as large as can be if it is late anyway."""
        if math.isinf(job.left):
            return Found((), True)
        begins = self._begins[first:]
        fits = np.all(self._free[first:, None, :] + TOLERANCE >= job.demand[None, 1:, :], axis=2)
        most = np.cumprod(fits, axis=1).sum(axis=1)  # (segments,) the largest size that fits in each
        ends = np.append(begins[1:], np.inf)
        before = np.maximum(np.minimum(ends, job.left) - begins, 0.0)  # (segments,) seconds before the deadline
        levels = np.minimum(most[None, :], np.arange(job.top + 1)[:, None])  # (1 + m, segments)
        done = job.speeds[levels] * before
        enough = np.flatnonzero(done.sum(axis=1) >= steps * (1.0 - TOLERANCE))
        if not len(enough):
            return Found(self._until_done(job, steps, begins, ends, most), False)
        level = int(enough[0])
        # The larger share as late as possible, one size less before.
        from_behind = np.cumsum(done[level][::-1])[::-1]
        point = int(np.flatnonzero(from_behind >= steps * (1.0 - TOLERANCE))[-1])
        chosen = np.where(np.arange(len(begins)) < point, levels[max(level - 1, 0)], levels[level])
        return Found(self._until_done(job, steps, begins, ends, chosen), True)

    def _until_done(
        self, job: SizedJob, steps: float, begins: FloatArray, ends: FloatArray, levels: IntArray
    ) -> Pieces:
        speeds = job.speeds[levels]
        with np.errstate(invalid="ignore"):
            done = np.cumsum(np.where(speeds > 0, speeds * (ends - begins), 0.0))
        last = int(np.searchsorted(done, steps * (1.0 - TOLERANCE)))
        if last == len(begins):
            last -= 1
        so_far = float(done[last - 1]) if last else 0.0
        speed = float(speeds[last])
        end = float(begins[last]) + max(steps - so_far, 0.0) / speed if speed > 0 else float(ends[last])
        pieces = zip(begins[:last].tolist(), ends[:last].tolist(), levels[:last].tolist(), strict=True)
        tail = Piece(float(begins[last]), end, int(levels[last]))
        return tuple(piece for piece in (*map(Piece._make, pieces), tail) if piece.level and piece.end > piece.begin)

    def take(self, job: SizedJob, pieces: Pieces, *, times: int = 1) -> None:
        """The job has these pieces, each until the end of the period; `times` -1: it gives them back."""
        for number, (begin, end, level) in enumerate(pieces):
            until = _period_after(end) if number == len(pieces) - 1 else end
            first, last = self._cut(begin), self._cut(until)
            self._free[first:last] -= times * job.demand[level]
        changes = np.append(True, np.any(self._free[1:] != self._free[:-1], axis=1))
        self._begins, self._free = self._begins[changes], self._free[changes]

    def _cut(self, instant: float) -> int:
        """The number of the segment that begins there; made, if need be."""
        number = int(np.searchsorted(self._begins, instant))
        if math.isfinite(instant) and (number == len(self._begins) or self._begins[number] != instant):
            self._begins = np.insert(self._begins, number, instant)
            self._free = np.insert(self._free, number, self._free[number - 1], axis=0)
        return number


def _period_after(seconds: float) -> float:
    return math.ceil(seconds / _PERIOD_SECONDS - TOLERANCE) * _PERIOD_SECONDS


# --- where not all can be in time ------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """What is given up where not all can be in time."""

    given_up: frozenset[str]
    broken: tuple[SizedJob, ...]
    """Promised jobs that are late all the same."""


def beyond_reach(jobs: Iterable[SizedJob], capacity: Resources) -> Choice:
    """The jobs to give up so that the others are in time: few, by the rule of Moore and Hodgson.

    Jobs are planned in the order in which they have to begin. Where one is late, the one among those so far that takes
    most of the cluster, by its priority, makes room for it, if that helps; else the late one is given up. Promised ones
    stay, and as many others make room for one as it takes. The rule is optimal on one machine; for sizes that are
    chosen it is a heuristic.

    References: Moore, "An n job, one machine sequencing algorithm for minimizing the number of late jobs", Management
    Science 15, 1968.
    """
    free, out, broken = Free(capacity), set[str](), list[SizedJob]()
    droppable: dict[str, tuple[float, SizedJob, Pieces]] = {}  # of jobs that may be given up, with what they take
    for job in sorted(jobs, key=by_latest_start):
        found = free.fill(job, job.steps, 0)
        takes = 0.0 if job.is_promised else _takes_alone(job, capacity)
        if not found.in_time:
            dearest = sorted(droppable.values(), key=lambda each: (each[0], each[1].id), reverse=True)
            others = dearest if job.is_promised else [each for each in dearest[:1] if each[0] > takes]
            instead = _instead_of(others, job, free)
            if instead is not None:
                found, dropped = instead
                out.update(dropped)
                droppable = {name: each for name, each in droppable.items() if name not in dropped}
            elif job.is_promised:
                broken.append(job)
            else:
                out.add(job.id)
                continue
        free.take(job, found.pieces)
        if not job.is_promised:
            droppable[job.id] = takes, job, found.pieces
    return Choice(frozenset(out), tuple(broken))


def _instead_of(
    others: Iterable[tuple[float, SizedJob, Pieces]], job: SizedJob, free: Free
) -> tuple[Found, set[str]] | None:
    """A job in time, with the first of the others, as few as it takes, whose room it has; None if none helps."""
    given = list[tuple[SizedJob, Pieces]]()
    for _, other, pieces in others:
        free.take(other, pieces, times=-1)
        given.append((other, pieces))
        found = free.fill(job, job.steps, 0)
        if found.in_time:
            return found, {each.id for each, _ in given}
    for other, pieces in given:
        free.take(other, pieces)
    return None


def _takes_alone(job: SizedJob, capacity: Resources) -> float:
    """Parts of an empty cluster times seconds, divided by its priority."""
    return spent(job, Free(capacity).fill(job, job.steps, 0).pieces) / job.outlook.job.spec.priority
