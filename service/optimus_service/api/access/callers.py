"""Who makes a request, and what that caller may do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from optimus_contract.people import ProjectRole, Role, Scope
from optimus_scheduler.model.format import ITS_OWNER
from optimus_service.store.records import JobRecord, TokenRecord, UserRecord

_SCOPES: tuple[Scope, ...] = ("read", "submit", "operate")
"""Each includes those before it."""


class Need(StrEnum):
    """What a call needs of who makes it. The value says it in the table of docs/rights.md."""

    NOTHING = "nothing: anybody may call it"
    OWN_TASKS = "the job's own token"
    READ = "any token; the answer has what its projects have"
    READ_JOB = "a job that the caller may read"
    SUBMIT = "member of the project, scope submit"
    CHANGE_JOB = "the caller's own job and scope submit; or operator and scope operate"
    OWN_TOKENS = "scope operate, all projects; others' tokens: administrator"
    OVERSEE = "operator or administrator, all projects"
    OPERATE = "operator or administrator, all projects, scope operate"
    ADMINISTER = "administrator, all projects, scope operate"

    @property
    def words(self) -> str:
        """Who may make the call, as the end of a sentence."""
        return _WORDS.get(self, self.value)

    @property
    def is_about_a_job(self) -> bool:
        return self in (Need.READ_JOB, Need.CHANGE_JOB)


_WORDS = {
    Need.OWN_TASKS: "only the job's own tasks may",
    Need.SUBMIT: "members of the project may, with a token of the scope submit or operate",
    Need.CHANGE_JOB: "its owner may, with a token of the scope submit or operate, and operators with one of operate",
    Need.OWN_TOKENS: "that takes a token of the scope operate that is limited to no projects; an administrator may",
    Need.OVERSEE: "operators and administrators may, with a token that is limited to no projects",
    Need.OPERATE: "operators and administrators may, with a token of the scope operate that is limited to no projects",
    Need.ADMINISTER: "administrators may, with a token of the scope operate that is limited to no projects",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request."""

    name: str
    role: Role | None = None
    memberships: Mapping[str, ProjectRole] = field(default_factory=lambda: MappingProxyType({}))
    """By project; of no meaning beside a role."""
    scope: Scope = "operate"
    within: frozenset[str] | None = None
    """Projects that the token is good for; None: all."""
    token_id: str | None = None
    """None: OPTIMUS_TOKEN, or no token."""
    limits: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    """The user's own, `UserLimits` as a document."""
    since: float = 0.0
    """When the user was made, POSIX seconds: older jobs are of an earlier user of the name, who was removed."""

    @property
    def projects(self) -> frozenset[str] | None:
        """Projects that the caller may read; None: all."""
        if self.role is not None:
            return self.within
        own = frozenset(self.memberships)
        return own if self.within is None else own & self.within

    @property
    def submits_to(self) -> frozenset[str] | None:
        """Projects that the caller may submit to; None: all."""
        readable = self.projects
        if not self._has("submit"):
            return frozenset()
        if self.role is not None or readable is None:
            return readable
        return frozenset(each for each in readable if self.memberships[each] == "member")

    def reads(self, project: str) -> bool:
        """Whether the caller may know of this project."""
        return self.projects is None or project in self.projects

    def submits(self, project: str) -> bool:
        """Whether the caller may submit jobs to this project."""
        return self.submits_to is None or project in self.submits_to

    def whose(self, job: JobRecord) -> str:
        """Whose job it is, as the beginning of a sentence for a caller who may not change it; empty: nobody's."""
        if job.owner is None:
            return ""
        earlier = job.owner == self.name and job.created_at < self.since
        return f"{job.id} belongs to {'an earlier user of that name' if earlier else job.owner}: "

    def words_for(self, job: JobRecord) -> str:
        """Who that is to the owner of a job: "its owner ada", "the operator eve"."""
        if self == LOCAL or (job.owner is None and self.role is None):
            return ITS_OWNER
        if self == BOOTSTRAP:
            return "the administrator with OPTIMUS_TOKEN"
        if job.owner == self.name:
            return f"{ITS_OWNER} {self.name}"
        return self.name if self.role is None else f"the {self.role} {self.name}"

    def changes(self, job: JobRecord) -> bool:
        """Whether the caller may change this job."""
        if self.role is not None and self._has("operate") and self.reads(job.project):
            return True
        return self.owns(job) and self.submits(job.project)

    def owns(self, job: JobRecord) -> bool:
        """Whether the job is the caller's own."""
        return job.owner == self.name and job.created_at >= self.since

    def has(self, need: Need) -> bool:
        """Whether the caller has the right, as far as it depends on no job."""
        match need:
            case Need.NOTHING | Need.READ | Need.READ_JOB:
                return True
            case Need.OWN_TASKS:
                return False
            case Need.SUBMIT | Need.CHANGE_JOB:
                return self.submits_to is None or bool(self.submits_to)
            case Need.OWN_TOKENS:
                return self._has("operate") and self.within is None
            case Need.OVERSEE:
                return self.role is not None and self.within is None
            case Need.OPERATE:
                return self.role is not None and self.within is None and self._has("operate")
            case Need.ADMINISTER:
                return self.role == "administrator" and self.within is None and self._has("operate")

    def _has(self, scope: Scope) -> bool:
        return _SCOPES.index(self.scope) >= _SCOPES.index(scope)


LOCAL = Caller(name="local", role="administrator")
"""Whoever reaches a service that listens on loopback without OPTIMUS_TOKEN."""
BOOTSTRAP = Caller(name="bootstrap", role="administrator")
"""Whoever has OPTIMUS_TOKEN."""


def caller_of(token: TokenRecord, user: UserRecord) -> Caller:
    """Who sends this token."""
    return Caller(
        name=user.name,
        role=user.role,  # type: ignore[arg-type]  # checked when it was stored
        memberships=user.projects,  # type: ignore[arg-type]
        scope=token.scope,  # type: ignore[arg-type]
        within=None if token.projects is None else frozenset(token.projects),
        token_id=token.id,
        since=user.created_at,
        limits=user.limits,
    )
