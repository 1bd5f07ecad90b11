"""Who may use the service, and with which tokens (docs/people.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from optimus_contract.allowance import NO_USER_LIMITS, UserLimits
from optimus_contract.fields import Name
from optimus_contract.message import FINITE, About, Message

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
