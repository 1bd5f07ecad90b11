"""What a caller may take at most, and how it is refused: which limit, its value, who can raise it.

Limits are of those whose rights come from projects. An administrator or operator has none, and raises those of others;
so has a job that comes from a TrainingJob, where Kubernetes says who may make how many.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from optimus_contract import answers
from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_contract.people import NO_USER_LIMITS, ProjectLimits, UserLimits
from optimus_service.api.access.callers import Caller
from optimus_service.api.http.problems import Problem, invalid
from optimus_service.insight.format import counted
from optimus_service.settings import Settings
from optimus_service.store.errors import ProjectNotFound
from optimus_service.store.repository import Repository

_BURST_SECONDS = 2.0
"""So long a caller who was silent may call twice as often as the limit says."""


def of_caller(caller: Caller, settings: Settings) -> UserLimits:
    """The limits that are in force for the caller: the user's own, else those of every member."""
    if caller.role is not None:
        return NO_USER_LIMITS
    own = read(UserLimits, caller.limits)
    defaults = settings.member_limits
    missing = {each.name: getattr(defaults, each.name) for each in fields(own) if getattr(own, each.name) is None}
    return replace(own, **missing)


def of_project(repository: Repository, name: str) -> ProjectLimits:
    """The limits of a project; of one without a row none."""
    try:
        return read(ProjectLimits, repository.projects.get(name).limits)
    except ProjectNotFound:
        return NO_USER_LIMITS


@dataclass(frozen=True, slots=True)
class InForce:
    """Limits that hold for a job."""

    whose: str
    limits: ProjectLimits
    cure: str
    """Who raises them, and how."""


def in_force(caller: Caller, project: str, repository: Repository, settings: Settings) -> list[InForce]:
    """Those that hold for the caller's jobs of this project."""
    if caller.role is not None:
        return []
    user, name = of_caller(caller, settings), caller.name
    return [
        InForce(name, user, f"an administrator raises it: optimus user set {name}"),
        InForce(
            f"project {project}",
            of_project(repository, project),
            f"an operator raises it: optimus project set {project}",
        ),
    ]


def refuse_size(
    spec: JobSpec,
    limits: Sequence[InForce],
    changed: Mapping[str, object] | None = None,
) -> None:
    """Raise `Problem` (422) if the job has a higher priority, or more workers, than the caller may give it.

    `changed`: fields that a change of the job touches; of others nothing is said. None: all are new.
    """
    errors = []
    for field, value, name, flag in (
        ("priority", spec.priority, "max_priority", "--max-priority"),
        ("workers.max", spec.workers.max, "max_workers", "--max-workers"),
        ("workers.min", spec.workers.min, "workers_together", "--workers-together"),
    ):
        if changed is not None and field not in changed:
            continue
        for each in limits:
            most = getattr(each.limits, name)
            if most is not None and value > most:
                message = f"may be at most {most:g} for {each.whose} ({name}); {each.cure} {flag} N"
                errors.append(answers.ProblemError(field=field, message=message))
    if errors:
        raise invalid(errors)


def refuse_never_let_in(spec: JobSpec, of_project: ProjectLimits) -> None:
    """Raise `Problem` (422) if no round would ever let the job start, as all jobs of its project together may hold
    fewer workers. That holds for everybody's jobs, an administrator's, too."""
    most = of_project.workers_together
    if most is not None and spec.workers.min > most:
        whose = f"all jobs of project {spec.project} together (workers_together)"
        cure = f"an operator raises it: optimus project set {spec.project} --workers-together N"
        message = f"may be at most {most} for {whose}; {cure}"
        raise invalid([answers.ProblemError(field="workers.min", message=message)])


def refuse_waiting(tx: Repository, caller: Caller, project: str, settings: Settings) -> None:
    """Raise `Problem` (409) if one more job may not wait. In the transaction that makes it wait, so that nobody comes
    between."""
    Waiting(tx, caller, settings).admit(project)


class Waiting:
    """How many jobs wait, of one transaction that makes some more of them wait."""

    def __init__(self, tx: Repository, caller: Caller, settings: Settings) -> None:
        self._tx = tx
        self._caller = caller
        self._settings = settings
        self._limits: dict[str, list[InForce]] = {}
        self._counts: dict[str, int] = {}
        """By whose jobs they are; in this transaction nobody else makes more."""

    def admit(self, project: str) -> None:
        """Count one more job of this project. Raise `Problem` (409), and count nothing, if it may not wait."""
        if project not in self._limits:
            self._limits[project] = in_force(self._caller, project, self._tx, self._settings)
        bounded = [each for each in self._limits[project] if each.limits.waiting_jobs is not None]
        for each in bounded:
            self._refuse_more(each, project)
        for each in bounded:
            self._counts[each.whose] += 1

    def _refuse_more(self, each: InForce, project: str) -> None:
        if each.whose not in self._counts:
            is_own = each.whose == self._caller.name
            self._counts[each.whose] = (
                self._tx.jobs.count_waiting(owner=self._caller.name)
                if is_own
                else self._tx.jobs.count_waiting(project=project)
            )
        n, most = self._counts[each.whose], each.limits.waiting_jobs
        if most is not None and n >= most:
            wait = f"{counted(n, 'job')} of {each.whose} {'waits' if n == 1 else 'wait'}"
            raise Problem(
                409,
                f"{wait}, and {most} may (waiting_jobs): wait until some have started, or cancel some; "
                f"{each.cure} --max-waiting N",
            )


class Throttle:
    """How often each caller calls: a bucket of tokens each, in the memory of this replica. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Calls that are left and when that was, by name. As many as there are users who have called."""
        self._lock = threading.Lock()

    def seconds_to_wait(self, name: str, per_second: float) -> float:
        """0 when the call may be made, and is counted; else after how many seconds the next one may."""
        most, now = max(1.0, _BURST_SECONDS * per_second), self._clock()
        with self._lock:
            left, at = self._buckets.get(name, (most, now))
            left = min(most, left + (now - at) * per_second)
            may = left >= 1.0
            self._buckets[name] = (left - may, now)
        return 0.0 if may else (1.0 - left) / per_second

    def refuse(self, caller: Caller, settings: Settings) -> None:
        """Raise `Problem` (429) if the caller calls too often."""
        per_second = of_caller(caller, settings).requests_per_second
        wait = 0.0 if per_second is None else self.seconds_to_wait(caller.name, per_second)
        if wait > 0:
            raise Problem(
                429,
                f"{caller.name} may make {per_second:g} requests a second (requests_per_second); an administrator "
                f"raises it: optimus user set {caller.name} --max-requests N",
                headers={"Retry-After": str(math.ceil(wait))},
            )
