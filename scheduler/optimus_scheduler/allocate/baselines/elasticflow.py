"""ElasticFlow: jobs are admitted only if all deadlines can be met, and the rest goes where it costs least."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.allocate.baselines.edf import by_deadline
from optimus_scheduler.allocate.baselines.fixed_ratio import by_arrival, grant
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, Reason, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SLOT_SECONDS = 60.0
"""What a job frees is given to others from the next slot on, as in the published simulations."""
_HAIR = 1e-9
"""Amounts and steps are compared to within so much, as elsewhere."""


class ElasticFlowPolicy:
    """Admission control by minimum satisfactory shares, and elastic allocation of the rest.

    * **Admission.** A job is admitted if a plan meets its deadline and makes no admitted job late: jobs in the order of
      their deadlines, each with the least power of two of workers that ends in time in what earlier ones leave free
      (*progressive filling*). Jobs that were promised their deadlines are admitted; of the others those that have begun
      are asked first, then in the order of arrival.
    * **The rest** goes where it costs least: doubling a job now costs the difference that it makes to the job's
      shares times seconds until its end, by the shares added. Jobs that have nothing come before all others.
    * **A declined job** gets what is left then, like one without a deadline.

    It takes changes to be free and speeds to be known, as published.

    References: Gu et al., "ElasticFlow: an elastic serverless training platform for distributed deep learning", ASPLOS
    2023, section 4, and its artifact: where the shares of a job differ over time, the larger ones come last.
    """

    name = "elasticflow"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    reads_deadlines = True
    spread = staticmethod(spread_least_transfer)
    dearest_first = False
    """Whether the rest goes where it costs most instead, as in the artifact."""

    def allocate(self, inputs: AllocationInput, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity. Declined jobs have the reason
        `DEADLINE_CANNOT_BE_MET`."""
        return self.schedule(inputs, settings).grants

    def schedule(self, inputs: AllocationInput, _settings: Settings, /) -> Schedule:
        """The grants, and how long they last as far as is known now."""
        jobs = [Ladder(one, inputs.capacity, inputs.now) for one in inputs.competing]
        admitted = self.admitted([job for job in jobs if job.has_deadline], inputs.capacity)
        plan = planned(admitted, inputs.capacity)
        others = sorted((job for job in jobs if job.id not in plan.pieces), key=lambda job: by_arrival(job.outlook))
        declined = {job.id for job in others if job.has_deadline}
        for job in others:
            job.left = math.inf
        levels = _with_the_rest([*admitted, *others], plan, -1.0 if self.dearest_first else 1.0)
        grants = {job.id: _grant(job, levels[job.id], job.id in declined) for job in jobs}
        return Schedule(grants, plan.free.first_end())

    def admitted(self, jobs: Sequence[Ladder], capacity: Resources) -> list[Ladder]:
        """Those whose deadlines are met together, and those that were promised theirs."""
        admitted = [job for job in jobs if job.is_promised]
        late = planned(admitted, capacity).late
        for job in sorted((job for job in jobs if not job.is_promised), key=_turn):
            if job.alone <= job.left and planned([*admitted, job], capacity).late <= late:
                admitted.append(job)
        return admitted


class Schedule(NamedTuple):
    grants: Mapping[str, Grant]
    seconds: float
    """Until the plan changes a size; infinite where it does not."""


def _grant(job: Ladder, level: int, is_declined: bool) -> Grant:
    found = grant(job.outlook, job.size(level))
    return found._replace(reason=Reason.DEADLINE_CANNOT_BE_MET) if is_declined else found


def _turn(job: Ladder) -> tuple[bool, float, str]:
    return job.outlook.job.started_at is None, *by_arrival(job.outlook)


class Ladder:
    """One job with the sizes that it may have: from its minimum to the fastest, the workers powers of two."""

    def __init__(self, outlook: Outlook, capacity: Resources, now: float) -> None:
        self.outlook, self.id = outlook, outlook.id
        deadline = outlook.job.spec.deadline_at
        self.has_deadline = deadline is not None
        self.left = math.inf if deadline is None else deadline - now
        """Seconds until the deadline that it is to meet; infinite without one."""
        sizes = [(size, outlook.speeds.at(size)) for size in _sizes(outlook)]
        # A larger size that is no faster is of no use.
        best = np.maximum.accumulate([0.0, *(speed for _, speed in sizes)])
        kept = [pair for pair, before in zip(sizes, best[:-1].tolist(), strict=True) if pair[1] > before]
        self._sizes = [size for size, _ in kept]
        self.speeds = np.array([0.0, *(speed for _, speed in kept)])
        """(1 + m,) steps/s with nothing, and with each size."""
        self.demand = np.array([_amounts(outlook.demand(size), capacity) for size in [NOTHING, *self._sizes]])
        """(1 + m, kinds)"""
        self.share = np.array([outlook.demand(size).dominant_share(capacity) for size in [NOTHING, *self._sizes]])
        """(1 + m,) part of the cluster."""
        remaining = outlook.forecast.remaining_steps
        is_known = remaining is not None and outlook.speeds.source is not None
        typical = outlook.typical_seconds * float(self.speeds[1])
        self.steps = max(remaining.mean, 1.0) if is_known and remaining is not None else typical
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


def _sizes(outlook: Outlook) -> Iterator[Allocation]:
    least, most = outlook.minimum, outlook.maximum
    yield least
    workers = 1 << least.workers.bit_length()
    while workers <= most.workers:
        yield outlook.size(workers, min(max(workers, least.servers), most.servers))
        workers *= 2


def _amounts(resources: Resources, capacity: Resources) -> list[float]:
    gpus = (float(resources.gpus.get(kind, 0)) for kind in sorted(capacity.gpus))
    return [resources.cpu, float(resources.memory_bytes), *gpus]


class _Piece(NamedTuple):
    """So much of a job's plan: seconds from now, and the number of the size."""

    begin: float
    end: float
    level: int


Pieces = tuple[_Piece, ...]


class _Found(NamedTuple):
    pieces: Pieces
    in_time: bool


@dataclass
class Plan:
    """What the admitted jobs hold from now until their ends, and what they leave free."""

    free: _Free
    pieces: dict[str, Pieces] = field(default_factory=dict)
    late: frozenset[str] = frozenset()


def planned(jobs: Iterable[Ladder], capacity: Resources) -> Plan:
    """Every job with its least share, in the order of the deadlines."""
    plan, late = Plan(_Free(capacity)), []
    for job in sorted(jobs, key=lambda job: by_deadline(job.outlook)):
        pieces, in_time = plan.free.fill(job, job.steps, 0)
        plan.free.take(job, pieces)
        plan.pieces[job.id] = pieces
        late += [] if in_time else [job.id]
    plan.late = frozenset(late)
    return plan


class _Free:
    """What is free from now on, in segments of constant amounts; the last one lasts for ever."""

    def __init__(self, capacity: Resources) -> None:
        self._begins = np.zeros(1)  # (segments,) seconds from now
        self._free = np.array([_amounts(capacity, capacity)])  # (segments, kinds)

    def first_end(self) -> float:
        """When the present segment ends."""
        return float(self._begins[1]) if len(self._begins) > 1 else math.inf

    def fits_now(self, job: Ladder, level: int, instead_of: int) -> bool:
        added = job.demand[level] - job.demand[instead_of]
        return bool(np.all(self._free[0] + _HAIR >= added))

    def fill(self, job: Ladder, steps: float, first: int) -> _Found:
        """The least share of a job for `steps`, from segment `first` on; as large as can be if it is late anyway."""
        if math.isinf(job.left):
            return _Found((), True)
        begins = self._begins[first:]
        fits = np.all(self._free[first:, None, :] + _HAIR >= job.demand[None, 1:, :], axis=2)
        most = np.cumprod(fits, axis=1).sum(axis=1)  # (segments,) the largest size that fits in each
        ends = np.append(begins[1:], np.inf)
        before = np.maximum(np.minimum(ends, job.left) - begins, 0.0)  # (segments,) seconds before the deadline
        levels = np.minimum(most[None, :], np.arange(job.top + 1)[:, None])  # (1 + m, segments)
        done = job.speeds[levels] * before
        enough = np.flatnonzero(done.sum(axis=1) >= steps * (1.0 - _HAIR))
        if not len(enough):
            return _Found(self._until_done(job, steps, begins, ends, most), False)
        level = int(enough[0])
        # The larger share as late as possible, one size less before.
        from_behind = np.cumsum(done[level][::-1])[::-1]
        point = int(np.flatnonzero(from_behind >= steps * (1.0 - _HAIR))[-1])
        chosen = np.where(np.arange(len(begins)) < point, levels[max(level - 1, 0)], levels[level])
        return _Found(self._until_done(job, steps, begins, ends, chosen), True)

    def _until_done(self, job: Ladder, steps: float, begins: FloatArray, ends: FloatArray, levels: IntArray) -> Pieces:
        speeds = job.speeds[levels]
        with np.errstate(invalid="ignore"):
            done = np.cumsum(np.where(speeds > 0, speeds * (ends - begins), 0.0))
        last = int(np.searchsorted(done, steps * (1.0 - _HAIR)))
        if last == len(begins):
            last -= 1
        so_far = float(done[last - 1]) if last else 0.0
        speed = float(speeds[last])
        end = float(begins[last]) + max(steps - so_far, 0.0) / speed if speed > 0 else float(ends[last])
        pieces = zip(begins[:last].tolist(), ends[:last].tolist(), levels[:last].tolist(), strict=True)
        tail = _Piece(float(begins[last]), end, int(levels[last]))
        return tuple(piece for piece in (*map(_Piece._make, pieces), tail) if piece.level and piece.end > piece.begin)

    def take(self, job: Ladder, pieces: Pieces, *, times: int = 1) -> None:
        """The job has these pieces, each until the end of the slot; `times` -1: it gives them back."""
        for number, (begin, end, level) in enumerate(pieces):
            until = _slot_after(end) if number == len(pieces) - 1 else end
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


def _slot_after(seconds: float) -> float:
    return math.ceil(seconds / _SLOT_SECONDS - _HAIR) * _SLOT_SECONDS


# --- what is left ----------------------------------------------------------------------------------------------------


class _Larger(NamedTuple):
    """The next size of a job, and what a share more of it costs (below 0: saves)."""

    cost: float
    number: int
    """Of the job; the first that costs least is next."""
    level: int
    pieces: Pieces


def _with_the_rest(jobs: Sequence[Ladder], plan: Plan, sign: float) -> dict[str, int]:
    """The number of the size that each job has now; those that cost least (`sign` -1: most) grow first, as long as
    there is room."""
    levels = {job.id: _now(plan.pieces.get(job.id, ())) for job in jobs}
    queue = [found for number, job in enumerate(jobs) if (found := _larger(number, job, levels[job.id], plan, sign))]
    heapq.heapify(queue)
    while queue:
        number = heapq.heappop(queue).number
        job = jobs[number]
        found = _larger(number, job, levels[job.id], plan, sign)  # anew: others have grown since
        if found is None:
            continue
        if queue and found[:2] > queue[0][:2]:
            heapq.heappush(queue, found)
            continue
        plan.free.take(job, plan.pieces.get(job.id, ()), times=-1)
        plan.free.take(job, found.pieces)
        plan.pieces[job.id], levels[job.id] = found.pieces, found.level
        if (larger := _larger(number, job, found.level, plan, sign)) is not None:
            heapq.heappush(queue, larger)
    return levels


def _larger(number: int, job: Ladder, before: int, plan: Plan, sign: float) -> _Larger | None:
    """None where there is no room for it, or no use."""
    level, pieces, free = before + 1, plan.pieces.get(job.id, ()), plan.free
    if level > job.top or not free.fits_now(job, level, before):
        return None
    free.take(job, pieces, times=-1)
    found = _forced(job, level, free)
    free.take(job, pieces)
    if before == 0:
        return _Larger(-math.inf, number, level, found)
    more = sign * (_spent(job, found, level) - _spent(job, pieces, before))
    return _Larger(more / float(job.share[level] - job.share[before]), number, level, found)


def _forced(job: Ladder, level: int, free: _Free) -> Pieces:
    """The job's plan with that size until what is free changes, and its least share from then on."""
    speed = float(job.speeds[level])
    until = min(free.first_end(), job.steps / speed)
    now = _Piece(0.0, until, level)
    if until >= job.steps / speed:
        return (now,)
    return now, *free.fill(job, job.steps - speed * until, 1).pieces


def _now(pieces: Pieces) -> int:
    return pieces[0].level if pieces and pieces[0].begin <= 0.0 else 0


def _spent(job: Ladder, pieces: Pieces, level: int) -> float:
    """Parts of the cluster times seconds until its end; as it is now, where nothing is planned for it."""
    if math.isinf(job.left):
        return float(job.share[level] * job.steps / job.speeds[level])
    return float(sum(job.share[level] * (end - begin) for begin, end, level in pieces))
