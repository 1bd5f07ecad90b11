"""Users with tokens for the tests of who may do what."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.service.api.api_harness import Api

from optimus_contract.people import ProjectRole, Role, Scope
from optimus_service.process.user_tokens import hash_of, new_token
from optimus_service.store.records import TokenRecord, UserRecord

ADMINISTRATOR = "a token of sixteen or more"


def add_user(api: Api, name: str, projects: Mapping[str, ProjectRole] | None = None, role: Role | None = None) -> None:
    """A user as an administrator makes one."""
    now = api.surroundings.clock()
    api.repository.people.create_user(
        UserRecord(name=name, kind="person", role=role, projects=projects or {}, created_at=now, created_by="tests")
    )


def add_token(
    api: Api,
    user: str,
    scope: Scope = "operate",
    projects: Collection[str] | None = None,
    expires_at: float | None = None,
) -> str:
    """A token of a user: what is sent."""
    token_id, secret = new_token()
    record = TokenRecord(
        id=token_id,
        user=user,
        name="",
        hash=hash_of(secret),
        scope=scope,
        projects=None if projects is None else tuple(projects),
        created_at=api.surroundings.clock(),
        created_by="tests",
        expires_at=expires_at,
    )
    api.repository.people.create_token(record)
    return secret
