"""Whether a replay of a trace can end: one that cannot goes on round by round to its limit, which takes hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from optimus_scheduler.allocate.allocate_with_quotas import confinements
from optimus_scheduler.allocate.policy import Policy, RigidPolicy
from optimus_scheduler.allocate.staying import Room
from optimus_scheduler.model import NOTHING, Allocation, JobSpec, Resources
from optimus_scheduler.place.place import Placer
from optimus_scheduler.place.requests import Request
from optimus_simulator.bounds.needs import needs_of
from optimus_simulator.errors import BadTrace
from optimus_simulator.options import DAY_SECONDS, Options
from optimus_simulator.trace import Trace, TraceJob
from optimus_simulator.truth.profiles import ProfiledTruth

_MOST_TOLD = 10
"""Jobs that are named in one error."""
_MEND = "Take the lines of such jobs out of the trace, or give it the nodes that they need"


def check_jobs(name: str, trace: Trace) -> None:
    """Whether the trace, called `name`, has jobs to replay, and each once.

    Raises:
        BadTrace: it has none, or two of one id.
    """
    if not trace.jobs:
        raise BadTrace(f"{name}: it has no jobs")
    job_id, times = Counter(job.id for job in trace.jobs).most_common(1)[0]
    if times > 1:
        raise BadTrace(f"{name}: job {job_id:.100} is there {times} times, but each id must be another one")


def check_ends(name: str, trace: Trace, options: Options, policy: Policy) -> None:
    """Whether each job has room on these nodes under this policy, and can end before the limit of the options.

    Raises:
        BadTrace: one has not, or cannot; measured applications are not asked how long they take.
    """
    check_room(name, trace, policy)
    limit = options.limit_days * DAY_SECONDS
    for job in trace.jobs:
        truth, seconds = job.truth, 0.0
        if job.submitted_at <= limit and not isinstance(truth, ProfiledTruth):
            smallest = truth.fastest(max(job.spec.worker.minimum, 1), job.spec.server.minimum)
            if truth.begin().seconds_left(smallest) + job.submitted_at > limit:  # else there is nothing to look at
                seconds = needs_of(replace(trace, jobs=(job,)), 0.0)[0].work.shortest
        if job.submitted_at + seconds > limit:
            raise BadTrace(
                f"{name}: job {job.id} is submitted at {job.submitted_at:g} s and takes {seconds:.3g} s at its best "
                f"size: it would end after the limit of {options.limit_days:g} virtual days (--set limit_days=DAYS)"
            )


def check_room(name: str, trace: Trace, policy: Policy) -> None:
    """Whether each job has room on these nodes under this policy, and in its project.

    Raises:
        BadTrace: one has not.
    """
    without_room = list(_without_room(trace, policy))
    if without_room:
        told = [f"job {job_id}: {why}" for job_id, why in without_room[:_MOST_TOLD]]
        more = len(without_room) - len(told)
        rest = f"; and {more} more" if more else ""
        raise BadTrace(f"{name}: {'; '.join(told)}{rest}. {_MEND}")


def _without_room(trace: Trace, policy: Policy) -> Iterator[tuple[str, str]]:
    """Jobs that could never start, and why."""
    placer, capacity = Placer(), trace.capacity
    confined, known = confinements(trace.quotas, Room(capacity)), dict[int, str]()
    for job in trace.jobs:
        why = known.get(id(job.spec))  # most jobs of a large trace share theirs
        if why is None:
            why = known[id(job.spec)] = _why_without_room(job, trace, placer, policy, confined)
        if why:
            yield job.id, why


def _why_without_room(
    job: TraceJob, trace: Trace, placer: Placer, policy: Policy, confined: Mapping[str, Resources]
) -> str:
    """Empty where it has some."""
    specs = [job.spec.on(gpu_type) for gpu_type in job.gpu_types_of(trace.capacity)]
    hosted = [spec for spec in specs if placer.hosts(_request(job, spec), trace.nodes, policy.spread)]
    if not hosted:
        return f"{_words(job.spec)} have no room on these nodes, even without other jobs: it could never start"
    right = confined.get(job.spec.project)
    if right is not None and not any(spec.demand(*_least(spec)).fits_in(right) for spec in hosted):
        return f"{_words(job.spec)} are more than its project, which may not borrow, ever has: it could never start"
    only = policy.only_size(job.spec) if isinstance(policy, RigidPolicy) else None
    if only is None:
        return ""
    asked = f"{_of_size(*only)}, the only size that {policy.name} gives it,"
    if not any(spec.demand(*only).fits_in(trace.capacity) for spec in specs):
        return f"{asked} have no room on these nodes, even without other jobs: it could never start"
    if right is not None and not any(spec.demand(*only).fits_in(right) for spec in specs):
        return f"{asked} are more than its project, which may not borrow, ever has: it could never start"
    return ""


def _least(spec: JobSpec) -> tuple[int, int]:
    return max(spec.worker.minimum, 1), spec.server.minimum


def _request(job: TraceJob, spec: JobSpec) -> Request:
    least = Allocation(*_least(spec))
    return Request(job.id, spec.worker.resources, spec.server.resources, NOTHING, least, {})


def _words(spec: JobSpec) -> str:
    least = _least(spec)
    return f"its smallest size, {_of_size(*least)}," if least[1] else f"{_of_size(*least)}, its fewest,"


def _of_size(workers: int, servers: int) -> str:
    return f"{workers} workers and {servers} servers" if servers else f"{workers} workers"
