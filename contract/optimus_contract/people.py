"""Who may use the service, with which tokens, and how much of it: users and projects (docs/people.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from optimus_contract.fields import SIZE, GpuType, Name, zero_or
from optimus_contract.limits import LEAST_CORES, LEAST_PART, LEAST_PRIORITY, MAX_TASKS, MOST_PRIORITY
from optimus_contract.message import FINITE, About, Message

# --- what one user, or the jobs of one project, may take at most (docs/limits.md) ------------------------------------


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

# --- users and tokens ------------------------------------------------------------------------------------------------

UserKind = Literal["person", "service"]
Role = Literal["administrator", "operator"]
ProjectRole = Literal["member", "viewer"]
Scope = Literal["read", "submit", "operate"]

RESERVED_USERS: Final = frozenset({"local", "bootstrap"})
"""Names of callers that are no stored users: without any token, and with OPTIMUS_TOKEN."""
MAX_PROJECTS: Final = 100
"""Of one user or token."""
MAX_TOKENS: Final = 100
"""Of one user that are good at a time: more than a person can tell apart, and a list that can be read."""
LONGEST_TOKEN_SECONDS: Final = 10 * 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRights(Message):
    """What a user may do (`PUT /v1/users/{name}`)."""

    kind: Annotated[UserKind, About("service: a program, such as a pipeline that submits jobs")] = "person"
    role: Annotated[
        Role | None,
        About("administrator: everything; operator: any job, quotas, metrics; null: what `projects` gives"),
    ] = None
    projects: Annotated[
        dict[Name, ProjectRole],
        About(
            "member: reads the project, submits, and changes jobs of their own; viewer: reads it",
            max_length=MAX_PROJECTS,
            examples=({"vision": "member", "speech": "viewer"},),
            json_schema={"propertyNames": {"maxLength": 63, "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}},
        ),
    ] = field(default_factory=dict)
    limits: UserLimits = NO_USER_LIMITS

    def check(self) -> None:
        if self.role is not None and self.projects:
            raise ValueError(f"an {self.role} has all projects: leave projects out")
        if self.role is not None and self.limits != NO_USER_LIMITS:
            raise ValueError(f"an {self.role} has no limits: leave limits out")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode(Message):
    """The sign-in that is asked after (`POST /v1/sso/device/token`)."""

    device_code: Annotated[str, About("as `POST /v1/sso/device` gave it", min_length=1, max_length=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(Message):
    """A token to be made (`POST /v1/tokens`)."""

    user: Annotated[Name | None, About("whose it is; null: the caller's own; others' are the administrator's")] = None
    name: Annotated[str, About("what it is for", max_length=100, examples=("laptop",))] = ""
    scope: Annotated[Scope, About("read; submit: also submit and change own jobs; operate: all that its user may")] = (
        "submit"
    )
    projects: Annotated[
        list[Name] | None,
        About("the token is good for these only; null: for all of its user's", max_length=MAX_PROJECTS),
    ] = None
    expires_seconds: Annotated[
        float | None, FINITE, About("from now; null: never", ge=1, le=LONGEST_TOKEN_SECONDS, examples=(2_592_000,))
    ] = None


# --- what a project is guaranteed, and what its members may take -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectQuota(Message):
    """What a project is guaranteed of the cluster (`PUT /v1/projects/{name}`).

    A `share` of everything, amounts of single resources, or both: an amount overrules the share for its resource.
    Cores and memory that are not named follow the largest part that is.
    """

    share: Annotated[float | None, FINITE, zero_or(LEAST_PART), About(ge=0, le=1, examples=(0.25,))] = None
    cpu: Annotated[float | None, FINITE, zero_or(LEAST_CORES), About("CPU cores", ge=0, le=1e9)] = None
    memory_bytes: Annotated[
        int | None, SIZE, About("bytes, or a string like 512Gi", ge=0, le=2**60, examples=("512Gi",))
    ] = None
    gpus: Annotated[
        dict[GpuType, Annotated[int, About(ge=0, le=10**6)]],
        About("by type", max_length=50, examples=({"a100": 8},), json_schema={"propertyNames": {"maxLength": 63}}),
    ] = field(default_factory=dict)
    may_borrow: Annotated[bool, About("whether it may have more than that while others leave it idle")] = True
    limits: ProjectLimits = NO_PROJECT_LIMITS

    def check(self) -> None:
        given = (self.share, self.cpu, self.memory_bytes, self.gpus or None)
        if all(each is None for each in given) and self.limits == NO_PROJECT_LIMITS:
            raise ValueError("give at least one of share, cpu, memory_bytes, gpus, limits")
