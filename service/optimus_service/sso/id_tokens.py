"""What a provider's signed statement about a person (an ID token) has to fulfil. Pure, but for the mathematics.

OpenID Connect Core 1.0, section 3.1.3.7. Algorithms are those with a public key: a token that is signed with nothing
(`none`), or with a key that both sides know (HS256, for which the public key of another algorithm could be taken), is
not genuine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, KeySet

from optimus_service.sso.errors import NotGenuine, UnknownKey

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
