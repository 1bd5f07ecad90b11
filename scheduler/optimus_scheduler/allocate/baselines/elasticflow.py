"""ElasticFlow: jobs are admitted only if all deadlines can be met, and the rest goes where it costs least."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from optimus_scheduler.allocate.baselines.fixed_ratio import by_arrival, grant
from optimus_scheduler.allocate.filling import Free, Piece, Pieces, Plan, SizedJob, planned, spent
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Reason, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings


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
    gathers = False
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
        jobs = [SizedJob(one, _sizes(one), inputs.capacity, inputs.now) for one in inputs.competing]
        admitted = self.admitted([job for job in jobs if job.has_deadline], inputs.capacity)
        plan = planned(admitted, inputs.capacity)
        others = sorted((job for job in jobs if job.id not in plan.pieces), key=lambda job: by_arrival(job.outlook))
        declined = {job.id for job in others if job.has_deadline}
        for job in others:
            job.left = math.inf
        levels = _with_the_rest([*admitted, *others], plan, -1.0 if self.dearest_first else 1.0)
        grants = {job.id: _grant(job, levels[job.id], job.id in declined) for job in jobs}
        return Schedule(grants, plan.free.first_end())

    def admitted(self, jobs: Sequence[SizedJob], capacity: Resources) -> list[SizedJob]:
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


def _grant(job: SizedJob, level: int, is_declined: bool) -> Grant:
    found = grant(job.outlook, job.size(level))
    return found._replace(reason=Reason.DEADLINE_CANNOT_BE_MET) if is_declined else found


def _turn(job: SizedJob) -> tuple[bool, float, str]:
    return job.outlook.job.started_at is None, *by_arrival(job.outlook)


def _sizes(outlook: Outlook) -> Iterator[Allocation]:
    least, most = outlook.minimum, outlook.maximum
    yield least
    workers = 1 << least.workers.bit_length()
    while workers <= most.workers:
        yield outlook.size(workers, min(max(workers, least.servers), most.servers))
        workers *= 2


# --- what is left ----------------------------------------------------------------------------------------------------


class _Larger(NamedTuple):
    """The next size of a job, and what a share more of it costs (below 0: saves)."""

    cost: float
    number: int
    """Of the job; the first that costs least is next."""
    level: int
    pieces: Pieces


def _with_the_rest(jobs: Sequence[SizedJob], plan: Plan, sign: float) -> dict[str, int]:
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


def _larger(number: int, job: SizedJob, before: int, plan: Plan, sign: float) -> _Larger | None:
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


def _forced(job: SizedJob, level: int, free: Free) -> Pieces:
    """The job's plan with that size until what is free changes, and its least share from then on."""
    speed = float(job.speeds[level])
    until = min(free.first_end(), job.steps / speed)
    now = Piece(0.0, until, level)
    if until >= job.steps / speed:
        return (now,)
    return now, *free.fill(job, job.steps - speed * until, 1).pieces


def _now(pieces: Pieces) -> int:
    return pieces[0].level if pieces and pieces[0].begin <= 0.0 else 0


def _spent(job: SizedJob, pieces: Pieces, level: int) -> float:
    """Parts of the cluster times seconds until its end; as it is now, where nothing is planned for it."""
    if math.isinf(job.left):
        return float(job.share[level] * job.steps / job.speeds[level])
    return spent(job, pieces)
