"""What one user, or the jobs of one project, may take at most (docs/limits.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from optimus_contract.limits import LEAST_PRIORITY, MAX_TASKS, MOST_PRIORITY
from optimus_contract.message import FINITE, About, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLimits(Message):
    """What the members of a project may have of it. Null: no limit."""

    waiting_jobs: Annotated[int | None, About("jobs that wait at a time, queued or paused", ge=0, le=10**6)] = None
    max_workers: Annotated[int | None, About("workers.max of one job", ge=1, le=MAX_TASKS)] = None
    workers_together: Annotated[int | None, About("that all jobs hold at a time", ge=1, le=10**6)] = None
    max_priority: Annotated[float | None, FINITE, About("of one job", ge=LEAST_PRIORITY, le=MOST_PRIORITY)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits(ProjectLimits):
    """What a user without a role may have. Null: what the service's settings give every member."""

    requests_per_second: Annotated[
        float | None, FINITE, About("of all tokens together, to each replica", ge=0.1, le=1e6)
    ] = None


NO_PROJECT_LIMITS = ProjectLimits()
NO_USER_LIMITS = UserLimits()
