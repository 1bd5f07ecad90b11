"""Users, tokens, and who did what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from optimus_contract.message import About, Message
from optimus_contract.people import ProjectRole, Role, Scope, UserKind, UserLimits

Right = Literal["submit", "oversee", "operate", "administer", "make tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class User(Message):
    name: str
    kind: UserKind
    role: Role | None
    projects: dict[str, ProjectRole]
    limits: Annotated[UserLimits, About("of this user; null: what every member has")]
    created_at: datetime
    created_by: str
    subject: Annotated[str | None, About("issuer and subject at the OpenID provider; null: made here")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserList(Message):
    users: list[User]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Message):
    """A token without its secret, of which the service keeps a hash only."""

    id: str
    user: str
    name: str
    scope: Scope
    projects: Annotated[list[str] | None, About("null: all of its user's")]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: Annotated[datetime | None, About("to the minute; null: never")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenList(Message):
    tokens: list[Token]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeToken(Message):
    """A token that was just made."""

    token: Token
    secret: Annotated[str, About("what to send as Authorization: Bearer; it is shown this once")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInWays(Message):
    """How one signs in to this service (`GET /v1/sign-in`)."""

    token: Annotated[bool, About("whether a token is needed at all")]
    sso: Annotated[str | None, About("what the page calls the OpenID provider; null: there is none")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSignIn(Message):
    """A sign-in that is finished in a browser, on whatever device."""

    device_code: Annotated[str, About("what `POST /v1/sso/device/token` wants; a secret")]
    user_code: Annotated[str, About("what is entered there")]
    verification_uri: str
    verification_uri_complete: Annotated[str | None, About("the same with the code in it")]
    expires_seconds: float
    interval_seconds: Annotated[float, About("wait as long between two questions")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgress(Message):
    """How a sign-in on another device goes."""

    made: Annotated[MadeToken | None, About("null: the sign-in has not been completed yet")]
    slow_down: Annotated[bool, About("wait five seconds longer between two questions")]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoAmI(Message):
    """The caller as the service sees it (`GET /v1/whoami`)."""

    name: str
    role: Role | None
    scope: Scope
    projects: Annotated[dict[str, ProjectRole] | None, About("that this token is good for; null: all")]
    may: Annotated[list[Right], About("what no single job decides; calls by what they need: docs/rights.md")]
    since: Annotated[datetime | None, About("older jobs are of an earlier user of this name; null: there was none")]
    token_id: Annotated[str | None, About("null: OPTIMUS_TOKEN, or no token at all")]
    limits: Annotated[UserLimits, About("in force for the caller; null: none. A project may have further ones")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(Message):
    """Something that was done through the API."""

    id: int
    at: datetime
    who: str
    token_id: str | None
    action: str
    target: Annotated[str | None, About("the job, project, user or token that it was done to")]
    project: str | None
    data: dict[str, Any]
    request_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditList(Message):
    entries: list[AuditEntry]
    next_cursor: str | None
