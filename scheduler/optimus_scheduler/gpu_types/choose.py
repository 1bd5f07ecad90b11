"""Step 1 of a round where jobs may run on several GPU types: first the types, then what each job will do there.

By speed, the choice is made with forecasts of all jobs (`market`); by price, without. Then it is looked at again:

* a job that has converged stays where it is, it will end in a moment;
* one whose deadline no size meets on its type goes to the fastest type that it accepts;
* one whose budget pays for its steps at no size goes to the type with the cheapest steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from optimus_scheduler.allocate.deadline_budget import limits_of
from optimus_scheduler.forecast.forecast import Forecaster
from optimus_scheduler.forecast.gpu_types import (
    ANY_GPU,
    RelativeSpeeds,
    accepted_types,
    has_a_choice,
    has_left_its_type,
    on_first_types,
    on_the_only_types,
    on_type,
    relative_speeds,
    types_of_each,
)
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.gpu_types.market import traded_types
from optimus_scheduler.model import Directive, Job, Node, Nodes, Reason, Snapshot
from optimus_scheduler.place.place import Placed, Placements
from optimus_scheduler.settings import Settings


def choose_and_forecast(
    snapshot: Snapshot, forecaster: Forecaster, settings: Settings
) -> tuple[Snapshot, tuple[Outlook, ...]]:
    """The snapshot with every job on one GPU type, and the outlook of each, sorted by job id."""
    choices = types_of_each(snapshot.jobs, snapshot.nodes)
    look = _Look(snapshot, forecaster, settings, choices)
    if not has_a_choice(choices):
        jobs = on_the_only_types(snapshot.jobs, choices)
        outlooks = forecaster(jobs, snapshot.now, settings)
    else:
        jobs = on_first_types(snapshot.jobs, snapshot.nodes, choices, look.speeds, snapshot.now, settings)
        outlooks = forecaster(jobs, snapshot.now, settings)
        if settings.gpu_type_by == "speed":
            traded = traded_types(outlooks, snapshot, choices, look.speeds, settings)
            jobs, outlooks = look.again(jobs, outlooks, traded)
    jobs, outlooks = look.again(jobs, outlooks, look.second_thoughts(outlooks))
    return replace(snapshot, jobs=jobs), outlooks


@dataclass(frozen=True)
class _Look:
    """One round's look at which types jobs run on."""

    reported: Snapshot
    forecaster: Forecaster
    settings: Settings
    choices: Mapping[str, Sequence[str]]

    @cached_property
    def speeds(self) -> RelativeSpeeds:
        return relative_speeds(self.reported.jobs, self.settings)

    def again(
        self, jobs: tuple[Job, ...], outlooks: tuple[Outlook, ...], instead: Mapping[str, str]
    ) -> tuple[tuple[Job, ...], tuple[Outlook, ...]]:
        """The same with some jobs on another type, by job id."""
        other = {job.id: instead[job.id] for job in jobs if instead.get(job.id, job.spec.gpu_type) != job.spec.gpu_type}
        if not other:
            return jobs, outlooks
        reported = {job.id: job for job in self.reported.jobs}
        jobs = tuple(on_type(reported[job.id], other[job.id], self.speeds) if job.id in other else job for job in jobs)
        return jobs, self.forecaster(jobs, self.reported.now, self.settings)

    def second_thoughts(self, outlooks: Sequence[Outlook]) -> dict[str, str]:
        """Another type for some of the jobs, by job id."""
        better = {
            one.id: one.present.gpu_type or ""
            for one in outlooks
            if one.forecast.converged and one.gpu_type is not None and one.has_tasks and has_left_its_type(one.job)
        }
        for one in outlooks if has_a_choice(self.choices) else ():
            types = self.choices.get(one.id, ())
            if len(types) > 1 and _is_limited(one) and one.id not in better:
                better[one.id] = self._that_helps(one, types)
        return better

    def _that_helps(self, outlook: Outlook, types: Sequence[str]) -> str:
        """The type for a job that cannot keep its deadline or budget; else the one that it is on."""
        limits = limits_of(outlook, self.reported.capacity, self.reported.now, self.settings)
        reason = limits.reason if limits is not None else None
        speed, prices = self.speeds.of(outlook.job), self.settings.price_per_gpu_hour
        deadline = outlook.job.spec.deadline_at
        if reason is Reason.DEADLINE_CANNOT_BE_MET and deadline is not None and deadline > self.reported.now:
            return max(types, key=speed)
        if reason is Reason.WITHIN_BUDGET and outlook.forecast.rule == "max_cost":
            return min(types, key=lambda gpu_type: prices.get(gpu_type, 0.0) / speed(gpu_type))
        return outlook.gpu_type or types[0]


def _is_limited(outlook: Outlook) -> bool:
    spec = outlook.job.spec
    return spec.deadline_at is not None or spec.convergence.max_cost is not None


# --- Jobs that found no place on the GPU type that was chosen for them, though another one has free GPUs -------------
# The choice counts GPUs; it sees neither cores nor how GPUs are spread over nodes. So once places are known, such a job
# does without that type, and the round is planned again, `round.MOST_PASSES` times at most.


def with_fallback_types(reported: Snapshot, outlooks: Sequence[Outlook], placements: Placements) -> Snapshot | None:
    """The snapshot with fewer types for jobs that are stuck; None when no job is.

    `outlooks` are those that were placed, each on one type; `reported` has the types that owners accept.
    """
    without = [one for one in outlooks if not isinstance(placements.get(one.id), Placed)]
    if not without:
        return None
    jobs = {job.id: job for job in reported.jobs}
    stuck = {one.id: one for one in _typed(without) if _has_a_choice(jobs[one.id]) or has_left_its_type(one.job)}
    if not stuck:
        return None
    free = _free_gpus(reported, _typed(outlooks), placements)
    nodes = Nodes.of(reported.nodes).distinct
    instead = {one.id: _instead(one, jobs[one.id], nodes, free) for one in stuck.values()}
    fewer = {job_id: types for job_id, types in instead.items() if types}
    if not fewer:
        return None
    return replace(reported, jobs=tuple(_accepting(job, fewer.get(job.id, ())) for job in reported.jobs))


def _typed(outlooks: Sequence[Outlook]) -> list[Outlook]:
    """Those that are to run on a GPU type."""
    return [one for one in outlooks if one.gpu_type is not None and one.job.directive is not Directive.CANCEL]


def _has_a_choice(job: Job) -> bool:
    """Whether its owner accepts other types than the one that it names."""
    return len(job.spec.gpu_types) > 1 or job.spec.gpu_type == ANY_GPU


def _instead(outlook: Outlook, job: Job, nodes: Sequence[Node], free: dict[str, int]) -> list[str]:
    """The types that are left for a stuck job; empty when it may as well wait."""
    if has_left_its_type(outlook.job):
        return [outlook.present.gpu_type or ""]  # better there than nowhere
    need = job.spec.worker.minimum * sum(job.spec.worker.resources.gpus.values())
    types = accepted_types(job.spec, nodes)
    return [gpu_type for gpu_type in types if gpu_type != outlook.gpu_type and free.get(gpu_type, 0) >= need]


def _accepting(job: Job, types: Collection[str]) -> Job:
    """The job with these types only."""
    if not types:
        return job
    return replace(job, spec=replace(job.spec.on(next(iter(types))), gpu_types=tuple(types)))


def _free_gpus(reported: Snapshot, outlooks: Sequence[Outlook], placements: Placements) -> dict[str, int]:
    """GPUs by type on which no task was placed."""
    free = dict(reported.capacity.gpus)
    for one in outlooks:
        placed, spec = placements.get(one.id), one.job.spec
        if isinstance(placed, Placed):
            for demand, tasks in ((spec.worker, placed.allocation.workers), (spec.server, placed.allocation.servers)):
                for gpu_type, count in demand.resources.gpus.items():
                    free[gpu_type] = free.get(gpu_type, 0) - count * tasks
    return free
