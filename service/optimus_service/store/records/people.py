"""Projects, users, tokens, what they used, and who did what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optimus_scheduler.model import Quota
from optimus_service.store.records.basics import UNSAVED, Document


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A project and what it is guaranteed of the cluster."""

    quota: Quota
    updated_at: float
    limits: Mapping[str, Any] = field(default_factory=dict)
    """`ProjectLimits` of the contract; what is missing has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What the jobs of one owner in one project were given in one month (UTC) on one GPU type."""

    month: str
    project: str
    owner: str | None
    gpu_type: str | None
    worker_seconds: float
    core_seconds: float
    """Of workers and servers, as `gpu_seconds`."""
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class MemberLimits:
    """The limits of a user without a role."""

    name: str
    since: float
    """When the user was made: older jobs are of an earlier user of the name."""
    limits: Mapping[str, Any]
    """`UserLimits` of the contract; what is missing is as for every member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """Somebody, or some program, that may use the service."""

    name: str
    kind: str
    role: str | None
    projects: Mapping[str, str]
    """`member` or `viewer` by project."""
    created_at: float
    created_by: str
    subject: str | None = None
    """Issuer and subject at the OpenID provider; None: an administrator made the user."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """`UserLimits` of the contract; what is missing is as for every member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token, without the token itself."""

    id: str
    user: str
    name: str
    hash: str
    """SHA-256 of the token, hexadecimal."""
    scope: str
    projects: tuple[str, ...] | None
    """None: all of its user's."""
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None

    def is_good(self, now: float) -> bool:
        """Whether it has neither expired nor been revoked."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Something that was done through the API."""

    id: int = UNSAVED
    at: float
    who: str
    token_id: str | None
    action: str
    target: str | None
    project: str | None
    data: Document
    request_id: str | None
