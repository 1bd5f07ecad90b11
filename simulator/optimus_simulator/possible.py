"""Whether a replay of a trace can end: one that cannot goes on round by round to its limit, which takes hours."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from optimus_scheduler.allocate.allocate_with_quotas import confinements
from optimus_scheduler.model import NOTHING, Allocation, JobSpec
from optimus_scheduler.place.network_cost import Spread
from optimus_scheduler.place.place import Placer
from optimus_scheduler.place.requests import Request
from optimus_simulator.bounds.needs import needs_of
from optimus_simulator.errors import BadTrace
from optimus_simulator.options import DAY_SECONDS, Options
from optimus_simulator.trace import Trace, TraceJob
from optimus_simulator.truth.profiles import ProfiledTruth


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


def check_ends(name: str, trace: Trace, options: Options, spread: Spread) -> None:
    """Whether each job has room on these nodes, placed by `spread`, and can end before the limit of the options.

    Raises:
        BadTrace: one has not, or cannot; measured applications are not asked how long they take.
    """
    _check_room(name, trace, spread)
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


def _check_room(name: str, trace: Trace, spread: Spread) -> None:
    placer, capacity = Placer(), trace.capacity
    confined, known = confinements(trace.quotas, capacity), set[int]()
    for job in trace.jobs:
        if id(job.spec) in known:  # most jobs of a large trace share theirs
            continue
        known.add(id(job.spec))
        specs = [job.spec.on(gpu_type) for gpu_type in job.gpu_types_of(capacity)]
        hosted = [spec for spec in specs if placer.hosts(_request(job, spec), trace.nodes, spread)]
        what = f"{name}: job {job.id}: {_words(job.spec)}"
        if not hosted:
            raise BadTrace(f"{what} have no room on these nodes, even without other jobs: it could never start")
        right = confined.get(job.spec.project)
        if right is not None and not any(spec.demand(*_least(spec)).fits_in(right) for spec in hosted):
            raise BadTrace(f"{what} are more than its project, which may not borrow, ever has: it could never start")


def _least(spec: JobSpec) -> tuple[int, int]:
    return max(spec.worker.minimum, 1), spec.server.minimum


def _request(job: TraceJob, spec: JobSpec) -> Request:
    least = Allocation(*_least(spec))
    return Request(job.id, spec.worker.resources, spec.server.resources, NOTHING, least, {})


def _words(spec: JobSpec) -> str:
    workers, servers = _least(spec)
    return (
        f"its smallest size, {workers} workers and {servers} servers," if servers else f"{workers} workers, its fewest,"
    )
