"""Step 1 of a round where jobs may run on several GPU types: first the types, then what each job will do there.

The choice knows nothing of how long jobs will still take. So it is looked at again once they have been forecast:

* a job that has converged stays where it is, it will end in a moment;
* one whose deadline no size meets on its type goes to the fastest type that it accepts;
* one whose budget pays for its steps at no size goes to the type with the cheapest steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from optimus_scheduler.constraints.gpu_types import (
    accepted_types,
    has_left_its_type,
    on_chosen_types,
    on_type,
    one_of_each,
)
from optimus_scheduler.constraints.terms import terms_of
from optimus_scheduler.constraints.type_speeds import RelativeSpeeds, relative_speeds
from optimus_scheduler.outlook import Outlook
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import Job, Reason, Snapshot

Forecaster = Callable[[Sequence[Job], float, Settings], tuple[Outlook, ...]]


def look_ahead(snapshot: Snapshot, forecaster: Forecaster, settings: Settings) -> tuple[Snapshot, tuple[Outlook, ...]]:
    """The snapshot with every job on one GPU type, and the outlook of each, sorted by job id."""
    jobs = on_chosen_types(snapshot.jobs, snapshot.nodes, snapshot.now, settings)
    outlooks = forecaster(jobs, snapshot.now, settings)
    told = {job.id: job for job in snapshot.jobs}
    typed = [outlook for outlook in outlooks if outlook.gpu_type is not None]
    better = _second_thoughts(typed, told, snapshot, settings) if typed else {}
    if better:
        speeds = relative_speeds(snapshot.jobs, settings)
        jobs = tuple(on_type(told[job.id], better.get(job.id, job.spec.gpu_type), speeds) for job in jobs)
        outlooks = forecaster(jobs, snapshot.now, settings)
    return replace(snapshot, jobs=jobs), outlooks


def _second_thoughts(
    outlooks: Sequence[Outlook], told: dict[str, Job], snapshot: Snapshot, settings: Settings
) -> dict[str, str]:
    """Another GPU type for some of the jobs, by job id."""
    better = {
        one.id: one.present.gpu_type or ""
        for one in outlooks
        if one.forecast.converged and one.is_held and has_left_its_type(one.job)
    }
    pressed = [one for one in outlooks if one.id not in better and _is_limited(one)]
    nodes = one_of_each(snapshot.nodes) if pressed else ()
    choices = {one.id: accepted_types(told[one.id].spec, nodes) for one in pressed}
    pressed = [one for one in pressed if len(choices[one.id]) > 1]
    if not pressed:
        return better
    speeds, capacity = relative_speeds(snapshot.jobs, settings), snapshot.capacity
    for one in pressed:
        terms = terms_of(one, capacity, snapshot.now, settings)
        reason = terms.reason if terms is not None else None
        kind = _for(reason, one, choices[one.id], speeds, snapshot.now, settings)
        if kind != one.gpu_type:
            better[one.id] = kind
    return better


def _is_limited(outlook: Outlook) -> bool:
    spec = outlook.job.spec
    return spec.deadline_at is not None or spec.convergence.max_cost is not None


def _for(
    reason: Reason | None,
    outlook: Outlook,
    types: Sequence[str],
    speeds: RelativeSpeeds,
    now: float,
    settings: Settings,
) -> str:
    """The type that helps a job that cannot keep its deadline or budget; else the one that it is on."""
    speed, prices = speeds.of(outlook.job), settings.price_per_gpu_hour
    deadline = outlook.job.spec.deadline_at
    if reason is Reason.DEADLINE_CANNOT_BE_MET and deadline is not None and deadline > now:
        return max(types, key=speed)
    if reason is Reason.WITHIN_BUDGET and outlook.forecast.rule == "max_cost":
        return min(types, key=lambda kind: prices.get(kind, 0.0) / speed(kind))
    return outlook.gpu_type or types[0]
