"""What a forged or foreign ID token does: nothing. And a provider that misbehaves: a clear refusal, in bounded time."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from tests.service.api.api_harness import until

from optimus_contract.people import RESERVED_USERS
from optimus_service.api.access.cookies import SignIn
from optimus_service.settings.oidc import OidcSettings
from optimus_service.sso import provider as module
from optimus_service.sso.id_tokens import (
    ALGORITHMS,
    Expected,
    NotAdmitted,
    NotGenuine,
    ProviderUnavailable,
    UnknownKey,
    claims_of,
    groups_in,
    keys_in,
    person_of,
    user_name,
)
from optimus_service.sso.provider import Provider, Tokens

ISSUER = "https://id.example/realm"
NOW = 1_760_000_000.0
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"})
EXPECTED = Expected(issuer=ISSUER, client_id="optimus", nonce="n-1", now=NOW, leeway_seconds=60)
SETTINGS = OidcSettings(
    issuer=ISSUER,
    client_id="optimus",
    public_url="https://optimus.example",
    roles={"admins": "administrator", "ops": "operator"},
    projects={"vision": {"vision": "member"}, "guests": {"vision": "viewer", "speech": "viewer"}},
)
GOOD = {
    "iss": ISSUER,
    "aud": "optimus",
    "sub": "42",
    "iat": NOW - 5,
    "exp": NOW + 300,
    "nonce": "n-1",
    "preferred_username": "Ada",
    "groups": ["vision"],
}


def public(*keys: RSAKey) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys]}


def signed(claims: dict[str, Any], key: Any = KEY, **header: Any) -> str:
    return jwt.encode({"alg": "RS256", "kid": "one", **header}, claims, key, algorithms=[*ALGORITHMS, "HS256"])


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def test_a_genuine_token_is_taken() -> None:
    assert claims_of(signed(GOOD), keys_in(public(OTHER, KEY)), EXPECTED)["sub"] == "42"
    several = {**GOOD, "aud": ["optimus", "another"], "azp": "optimus"}
    assert claims_of(signed(several), keys_in(public(KEY)), EXPECTED)["sub"] == "42"


@pytest.mark.parametrize(
    "wrong",
    [
        {"aud": "another-service"},
        {"aud": ["another-service"]},
        {"aud": ["optimus", "another"]},  # for several, and not said by whom it was asked for
        {"azp": "another"},
        {"aud": None},
        {"iss": "https://id.example/another-realm"},
        {"iss": ISSUER + "/"},
        {"iss": [ISSUER]},
        {"exp": NOW - 61},
        {"exp": None},
        {"exp": float("inf")},
        {"exp": str(NOW + 300)},
        {"iat": NOW + 61},
        {"iat": None},
        {"nbf": NOW + 61},
        {"nonce": "n-2"},
        {"nonce": None},
        {"nonce": ["n-1"]},
        {"sub": ""},
        {"sub": 42},
        {"sub": "x" * 256},
    ],
)
def test_a_token_that_is_about_something_else_is_refused(wrong: dict[str, Any]) -> None:
    claims = {name: value for name, value in {**GOOD, **wrong}.items() if value is not None}
    with pytest.raises(NotGenuine):
        claims_of(signed(claims), keys_in(public(KEY)), EXPECTED)


@pytest.mark.parametrize("wrong", [{"exp": NOW - 59}, {"iat": NOW + 59}, {"nbf": NOW + 59}])
def test_clocks_may_differ_by_the_leeway(wrong: dict[str, Any]) -> None:
    assert claims_of(signed({**GOOD, **wrong}), keys_in(public(KEY)), EXPECTED)
    with pytest.raises(NotGenuine):
        claims_of(signed({**GOOD, **wrong}), keys_in(public(KEY)), replace(EXPECTED, leeway_seconds=30))


def test_tokens_that_nobody_signed_are_refused() -> None:
    head, body, _ = signed(GOOD).split(".")
    none = [f"{encoded({'alg': alg})}.{body}." for alg in ("none", "None", "", None)]
    others = (f"{head}.{body}.", f"{head}.{body}", "", "a.b.c", "not a token", signed(GOOD)[:-4] + "AAAA")
    for token in (*none, *others):
        with pytest.raises(NotGenuine):
            claims_of(token, keys_in(public(KEY)), EXPECTED)


def test_the_public_key_is_no_password() -> None:
    """A token signed by HS256 with what everybody knows: the public key, in each of its forms."""
    for known in (KEY.as_pem(private=False), KEY.as_der(private=False), json.dumps(public(KEY)["keys"][0]).encode()):
        told = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{encoded(GOOD)}"
        signature = hmac.new(known, told.encode(), "sha256").digest()
        forged = f"{told}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
        with pytest.raises(NotGenuine):
            claims_of(forged, keys_in(public(KEY)), EXPECTED)


def test_keys_of_the_token_itself_are_not_taken() -> None:
    forged = signed(GOOD, OTHER, jwk=public(OTHER)["keys"][0])
    with pytest.raises(NotGenuine):
        claims_of(forged, keys_in(public(KEY)), EXPECTED)


def test_another_key_or_one_of_another_kind_is_refused() -> None:
    with pytest.raises(NotGenuine):
        claims_of(signed(GOOD, OTHER), keys_in(public(KEY)), EXPECTED)
    with pytest.raises(UnknownKey):
        claims_of(signed(GOOD, OTHER, kid="two"), keys_in(public(KEY)), EXPECTED)
    with pytest.raises(NotGenuine):
        claims_of(signed(GOOD, ECKey.generate_key("P-256"), alg="ES256"), keys_in(public(KEY)), EXPECTED)


def test_keys_that_check_no_signatures_are_left_out() -> None:
    shared = OctKey.generate_key(256, {"kid": "shared"}).as_dict()
    secret = {**public(OTHER)["keys"][0], "use": "enc"}
    odd = [shared, secret, {"kty": "RSA"}, {"kty": "future"}, "no key", None]
    assert [key.kid for key in keys_in({"keys": [*odd, *public(KEY)["keys"]]})] == ["one"]
    for none in ({"keys": odd}, {"keys": None}, {}):
        with pytest.raises(NotGenuine, match="no key"):
            keys_in(none)


# --- the provider as a whole -----------------------------------------------------------------------------------------


class Hostile(httpx.AsyncBaseTransport):
    """A provider that answers what the test says, and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.keys = public(KEY)
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
        }
        self.answers: dict[str, Callable[[], httpx.Response]] = {}
        self.hang = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        self.asked.append(name)
        if name in self.answers:
            return self.answers[name]()
        if name == "hanging":
            await self.hang.wait()
        return httpx.Response(200, json=self.metadata if name == "openid-configuration" else self.keys)


class World:
    """A provider and what the service knows of it."""

    def __init__(self) -> None:
        self.now = NOW
        self.hostile = Hostile()
        self.provider = Provider(SETTINGS, lambda: self.now, self.hostile)

    async def claims(self, token: str) -> dict[str, Any]:
        return await self.provider.claims(Tokens(token, None), "n-1")


def test_an_unknown_key_is_asked_for_once_in_a_while() -> None:
    async def story() -> None:
        world = World()
        assert (await world.claims(signed(GOOD)))["sub"] == "42"
        for _ in range(20):
            with pytest.raises(UnknownKey):
                await world.claims(signed(GOOD, OTHER, kid="two"))
        assert world.hostile.asked.count("keys") == 1
        world.now += 30.0
        world.hostile.keys = public(OTHER)  # it has rotated
        assert (await world.claims(signed(GOOD, OTHER, kid="two")))["sub"] == "42"
        with pytest.raises(UnknownKey):
            await world.claims(signed(GOOD))  # a key that was withdrawn
        assert world.hostile.asked.count("keys") == 2
        assert world.hostile.asked.count("openid-configuration") == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"issuer": "https://evil.example"}, "OPTIMUS_OIDC__ISSUER"),
        ({"issuer": None}, "OPTIMUS_OIDC__ISSUER"),
        ({"token_endpoint": "http://id.example/token"}, "token_endpoint"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
        ({"authorization_endpoint": None}, "authorization_endpoint"),
    ],
)
def test_a_provider_that_calls_itself_something_else_is_not_used(wrong: dict[str, Any], says: str) -> None:
    world = World()
    world.hostile.metadata |= wrong
    with pytest.raises(ProviderUnavailable, match=says):
        asyncio.run(world.provider.authorization_url("s", "n", "v"))


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(500),
        lambda: httpx.Response(302, headers={"Location": "http://127.0.0.1/"}),
        lambda: httpx.Response(200, text="<html>"),
        lambda: httpx.Response(200, json=["a list"]),
        lambda: httpx.Response(200, content=b" " * (2**20 + 1)),
    ],
)
def test_nonsense_of_the_provider_is_said(answer: Callable[[], httpx.Response]) -> None:
    world = World()
    world.hostile.answers["openid-configuration"] = answer
    with pytest.raises(ProviderUnavailable, match="OpenID provider answers"):
        asyncio.run(world.provider.authorization_url("s", "n", "v"))


def test_a_provider_that_hangs_holds_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten that wait for an answer are refused together, not one after the other."""
    monkeypatch.setattr(module, "CALL_SECONDS", 0.05)
    world = World()
    world.hostile.metadata["token_endpoint"] = f"{ISSUER}/hanging"

    async def story() -> list[Any]:
        exchanges = [world.provider.exchange("code", "verifier") for _ in range(10)]
        return await asyncio.gather(*exchanges, return_exceptions=True)

    found = asyncio.run(story())
    assert all(isinstance(each, ProviderUnavailable) and "does not answer" in str(each) for each in found)


def test_only_so_many_wait_for_the_provider_at_one_time() -> None:
    world = World()
    world.hostile.metadata["token_endpoint"] = f"{ISSUER}/hanging"

    async def story() -> ProviderUnavailable:
        await world.provider.authorization_url("s", "n", "v")
        waiting = [asyncio.ensure_future(world.provider.exchange("c", "v")) for _ in range(module.MAX_AT_ONCE)]
        await until(lambda: world.hostile.asked.count("hanging") == module.MAX_AT_ONCE)
        with pytest.raises(ProviderUnavailable, match="too many") as refused:
            await world.provider.exchange("c", "v")
        world.hostile.hang.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        return refused.value

    assert asyncio.run(story())


def test_a_provider_that_fails_is_not_asked_by_everybody() -> None:
    world = World()
    world.hostile.answers["openid-configuration"] = lambda: httpx.Response(503)

    async def story() -> None:
        for _ in range(10):
            with pytest.raises(ProviderUnavailable, match="503"):
                await world.provider.authorization_url("s", "n", "v")
        assert len(world.hostile.asked) == 1
        del world.hostile.answers["openid-configuration"]
        world.now += 5.0
        assert (await world.provider.authorization_url("s", "n", "v")).startswith(f"{ISSUER}/authorize?")

    asyncio.run(story())


def test_userinfo_of_somebody_else_is_refused() -> None:
    world = World()
    world.hostile.metadata["userinfo_endpoint"] = f"{ISSUER}/userinfo"
    plain = signed({name: value for name, value in GOOD.items() if name != "groups"})

    async def asked(sub: str) -> dict[str, Any]:
        world.hostile.answers["userinfo"] = lambda: httpx.Response(200, json={"sub": sub, "groups": ["ops"]})
        return await world.provider.claims(Tokens(plain, "access"), "n-1")

    async def story() -> None:
        assert (await asked("42"))["groups"] == ["ops"]
        with pytest.raises(NotGenuine, match="somebody else"):
            await asked("43")

    asyncio.run(story())


# --- who somebody is, and what they may do ---------------------------------------------------------------------------


def test_groups_give_the_most_that_one_of_them_gives() -> None:
    def of(*groups: str) -> tuple[Any, Any]:
        person = person_of({**GOOD, "groups": list(groups)}, SETTINGS)
        return person.role, dict(person.projects)

    assert of("vision", "guests") == (None, {"vision": "member", "speech": "viewer"})
    assert of("guests") == (None, {"vision": "viewer", "speech": "viewer"})
    assert of("ops", "vision") == ("operator", {})
    assert of("ops", "admins") == ("administrator", {})
    with pytest.raises(NotAdmitted, match="none of the groups"):
        of("Vision", "admin")


@pytest.mark.parametrize("claim", [None, 3, {"admins": True}, [["admins"]], [None], "adminsx"])
def test_groups_that_are_no_names_give_nothing(claim: object) -> None:
    assert not groups_in(claim) & {"admins"}


@given(st.one_of(st.text(), st.integers(), st.none(), st.emails()))
def test_every_name_of_a_provider_is_a_users_name_or_is_refused(value: object) -> None:
    try:
        name = user_name(value)
    except NotAdmitted:
        return
    assert 1 <= len(name) <= 63
    assert name not in RESERVED_USERS
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not name.startswith("-")
    assert not name.endswith("-")


def test_names() -> None:
    assert user_name("Ada.Lovelace@example.org") == "ada-lovelace"
    assert user_name("José_Núñez") == "jose-nunez"
    for none in ("bootstrap", "local", "@x", "日本"):
        with pytest.raises(NotAdmitted, match="USER_CLAIM"):
            user_name(none)


@pytest.mark.parametrize(
    "view",
    ["//evil.example", "https://evil.example", "/\\evil.example", "#//..@evil", "#/x\r\nSet-Cookie: a=b", "", None],
)
def test_a_sign_in_leads_back_to_the_page_only(view: str | None) -> None:
    assert SignIn.begun(view).return_to == "#/"
    assert SignIn.begun("#/jobs/a-1").return_to == "#/jobs/a-1"
