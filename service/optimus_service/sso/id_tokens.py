"""What a provider's signed statement about a person (an ID token) has to fulfil, and what rights it gives. Pure.

OpenID Connect Core 1.0, section 3.1.3.7. Algorithms are those with a public key: a token that is signed with nothing
(`none`), or with a key that both sides know (HS256, for which the public key of another algorithm could be taken), is
not genuine.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, KeySet

from optimus_contract.people import RESERVED_USERS, ProjectRole, Role
from optimus_service.settings.oidc import OidcSettings


class ProviderUnavailable(Exception):
    """The provider cannot be asked now, or answers what no provider answers."""


class NotAdmitted(Exception):
    """A person whom the provider does not vouch for, or whom the service does not let in."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        """Tells the page which words to show."""
        super().__init__(message)


class NotGenuine(Exception):
    """A statement is not the provider's, or not about this sign-in. The message is for the log, not for users."""


class UnknownKey(NotGenuine):
    """None of the keys has the name that the token gives: the provider may have new ones."""


ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a genuine token says."""

    issuer: str
    client_id: str
    nonce: str | None
    """None: the sign-in had none (device flow)."""
    now: float
    """POSIX seconds."""
    leeway_seconds: int


def keys_in(document: Mapping[str, Any]) -> KeySet:
    """The keys of a JWKS document that can check signatures; others are left out.

    Raises:
        NotGenuine: it has none.
    """
    found = document.get("keys")
    keys = []
    for each in found if isinstance(found, list) else []:
        if isinstance(each, dict) and each.get("kty") in _KEY_TYPES and each.get("use", "sig") == "sig":
            try:
                keys.append(JWKRegistry.import_key(each))
            except (JoseError, ValueError, TypeError, KeyError):
                continue  # a kind of key that is not known here: others are usable
    if not keys:
        raise NotGenuine("the provider's JWKS has no key that can be used")
    return KeySet(keys)


def claims_of(token: str, keys: KeySet, expected: Expected) -> dict[str, Any]:
    """What a genuine ID token says.

    Raises:
        UnknownKey: with other keys it may be genuine.
        NotGenuine: it is not.
    """
    try:
        claims = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
    except InvalidKeyIdError as error:
        raise UnknownKey(str(error)) from error
    except (JoseError, ValueError, TypeError) as error:
        raise NotGenuine(f"the ID token's signature: {error}") from error
    of_this_sign_in: dict[str, jwt.ClaimsOption] = (
        {} if expected.nonce is None else {"nonce": {"essential": True, "value": expected.nonce}}
    )
    registry = jwt.JWTClaimsRegistry(
        now=int(expected.now),
        leeway=expected.leeway_seconds,
        iss={"essential": True, "value": expected.issuer},
        aud={"essential": True, "value": expected.client_id},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
        **of_this_sign_in,
    )
    try:
        registry.validate(claims)
    except JoseError as error:
        raise NotGenuine(f"the ID token's claims: {error}") from error
    if expected.nonce is not None and claims["nonce"] != expected.nonce:  # the library takes a list that has it, too
        raise NotGenuine("the ID token's nonce is no single value")
    # Issued for several, it says which of them asked for it.
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if several else expected.client_id) != expected.client_id:
        raise NotGenuine("the ID token was issued to another client (azp)")
    if not 0 < len(claims["sub"]) <= 255:
        raise NotGenuine("the ID token's subject is no name of 1 to 255 characters")
    return claims


# --- who somebody is, and what they may do, by the settings ----------------------------------------------------------

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
