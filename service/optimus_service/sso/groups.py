"""Who somebody is, and what they may do, by what the provider says of them and what the settings make of it. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optimus_contract.people import RESERVED_USERS, ProjectRole, Role
from optimus_service.settings.oidc import OidcSettings
from optimus_service.sso.errors import NotAdmitted

_LONGEST = 63
_ROLES: tuple[Role, ...] = ("administrator", "operator")
"""The mightier first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody whom the provider vouches for."""

    subject: str
    """Issuer and subject, with a blank between them: what stays the same when names change."""
    name: str
    role: Role | None
    projects: Mapping[str, ProjectRole]
    groups: tuple[str, ...]
    """Those that rights came from."""


def person_of(claims: Mapping[str, Any], settings: OidcSettings) -> Person:
    """Who signs in.

    Raises:
        NotAdmitted: no group of theirs has rights here, or no user's name can be made of what the provider says.
    """
    groups = groups_in(claims.get(settings.groups_claim))
    known = tuple(sorted(groups & (settings.roles.keys() | settings.projects.keys())))
    if not known:
        raise NotAdmitted("no-group", "you are in none of the groups that may use this service")
    role = next((each for each in _ROLES if each in {settings.roles.get(group) for group in known}), None)
    projects: dict[str, ProjectRole] = {}
    for group in known:
        for project, right in settings.projects.get(group, {}).items():
            projects[project] = "member" if "member" in (right, projects.get(project)) else "viewer"
    return Person(
        subject=f"{settings.issuer} {claims['sub']}",
        name=user_name(claims.get(settings.user_claim)),
        role=role,
        projects={} if role is not None else projects,  # a role has all projects
        groups=known,
    )


def groups_in(value: object) -> frozenset[str]:
    """The groups that a claim names: a list of names, or one name."""
    if isinstance(value, str):
        return frozenset({value})
    return frozenset(each for each in value if isinstance(each, str)) if isinstance(value, list) else frozenset()


def user_name(value: object) -> str:
    """A user's name as this service has them: Ada.Lovelace@example.org is ada-lovelace.

    Raises:
        NotAdmitted: there is nothing to make one of.
    """
    text = value.partition("@")[0] if isinstance(value, str) else ""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_LONGEST].rstrip("-")
    if not name or name in RESERVED_USERS:
        raise NotAdmitted("no-name", "the provider gives no user name that can be used here (OPTIMUS_OIDC__USER_CLAIM)")
    return name
