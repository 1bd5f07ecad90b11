"""Calls of the OpenID provider: what it says of itself, its keys, and the two ways of signing in.

Whoever has not signed in yet causes these calls, so all are bounded: in time, in size, and in how many there are at one
time. What the provider says of itself is asked for once an hour; its keys also when a token names one that is not
known, once in `_NEW_KEYS_SECONDS`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import httpx
import structlog

from optimus_service.settings.addresses import is_safe_url
from optimus_service.settings.oidc import OidcSettings
from optimus_service.sso.id_tokens import NotAdmitted, NotGenuine, ProviderUnavailable, UnknownKey

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

CALL_SECONDS = 10.0
"""One call of the provider, from its first byte to its last."""
MAX_AT_ONCE = 32
"""Calls of the provider at one time; more are refused, so that a provider that hangs holds little of the service."""
_MAX_BYTES = 2**20
_FRESH_SECONDS = 3600.0
_NEW_KEYS_SECONDS = 30.0
_FAILED_SECONDS = 5.0
"""For so long a provider that did not answer is not asked again what it says of itself: those who wait for their turn
to ask do not wait one after the other."""
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_USED = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint", "device_authorization_endpoint")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the provider hands out at the end of a sign-in."""

    id_token: str
    access_token: str | None


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """Nobody has entered the code yet."""

    slow_down: bool


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The beginning of a sign-in on another device (RFC 8628, section 3.2)."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    expires_seconds: float
    interval_seconds: float


class Provider:
    """One OpenID provider. For one event loop."""

    def __init__(
        self,
        settings: OidcSettings,
        clock: Callable[[], float],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`clock`: POSIX seconds. `transport`: how calls are made, when not over the network."""
        # Imported here: services without a provider do without the library of signatures.
        from optimus_service.sso import id_tokens

        self._id_tokens = id_tokens
        self._settings = settings
        self._clock = clock
        self._client = httpx.AsyncClient(transport=transport)
        self._metadata: dict[str, Any] = {}
        self._metadata_at = float("-inf")
        self._keys: KeySet | None = None
        self._keys_at = float("-inf")
        self._failed_at = float("-inf")
        self._failure = ""
        self._asking = asyncio.Lock()
        self._calls = 0

    @property
    def redirect_uri(self) -> str:
        """Where the provider leads back to."""
        return f"{self._settings.public_url}/v1/sso/callback"

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    # --- the page: authorization code with PKCE

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """Where the browser goes to sign in. `verifier`: the secret that `exchange` needs then (RFC 7636)."""
        endpoint = await self._endpoint("authorization_endpoint")
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def exchange(self, code: str, verifier: str) -> Tokens:
        """What the provider gives for the code that the browser came back with.

        Raises:
            NotAdmitted: nothing: the code is not its own, is old, or was used before.
        """
        answer = await self._token(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self.redirect_uri,
                "code_verifier": verifier,
            }
        )
        if "error" in answer:
            _log.warning("the provider refuses a sign-in", error=_short(answer["error"]))
            raise NotAdmitted("refused", f"the provider refuses the sign-in ({_short(answer['error'])})")
        return _tokens(answer)

    # --- the command line: device authorization grant (RFC 8628)

    async def start_device(self) -> DeviceCode:
        """Begin a sign-in whose code is entered in a browser elsewhere.

        Raises:
            NotAdmitted: the provider knows no such way, or not for this service.
        """
        metadata = await self._known()
        if "device_authorization_endpoint" not in metadata:
            raise NotAdmitted("no-device-flow", "the provider has no device_authorization_endpoint")
        form = {"scope": " ".join(self._settings.scopes)}
        answer = await self._post(metadata["device_authorization_endpoint"], form)
        if "error" in answer:
            raise NotAdmitted("refused", f"the provider refuses the device flow ({_short(answer['error'])})")
        try:
            return DeviceCode(
                str(answer["device_code"]),
                str(answer["user_code"]),
                str(answer["verification_uri"]),
                None if answer.get("verification_uri_complete") is None else str(answer["verification_uri_complete"]),
                float(answer["expires_in"]),
                float(answer.get("interval", 5)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProviderUnavailable(f"the provider's answer to a device is not understood: {error}") from error

    async def poll_device(self, device_code: str) -> Tokens | StillWaiting:
        """Whether somebody has entered the code by now.

        Raises:
            NotAdmitted: they refused, or it is too late.
        """
        answer = await self._token({"grant_type": _DEVICE_GRANT, "device_code": device_code})
        match answer.get("error"):
            case None:
                return _tokens(answer)
            case "authorization_pending" | "slow_down" as error:
                return StillWaiting(slow_down=error == "slow_down")
            case "access_denied":
                raise NotAdmitted("refused", "the sign-in was refused in the browser")
            case "expired_token":
                raise NotAdmitted("expired", "nobody signed in in time: start again")
            case error:
                raise NotAdmitted("refused", f"the provider refuses the sign-in ({_short(error)})")

    # --- what tokens say

    async def claims(self, tokens: Tokens, nonce: str | None) -> dict[str, Any]:
        """What the provider says of the person: its ID token, and where that has no groups its userinfo, too.

        Raises:
            NotGenuine: the ID token is not this provider's, or not about this sign-in.
        """
        settings = self._settings
        expected = self._id_tokens.Expected(
            issuer=settings.issuer,
            client_id=settings.client_id,
            nonce=nonce,
            now=self._clock(),
            leeway_seconds=settings.leeway_seconds,
        )
        try:
            claims = self._id_tokens.claims_of(tokens.id_token, await self._current_keys(), expected)
        except UnknownKey:
            claims = self._id_tokens.claims_of(tokens.id_token, await self._newer_keys(), expected)
        endpoint = (await self._known()).get("userinfo_endpoint")
        if {settings.groups_claim, settings.user_claim} <= claims.keys() or not (endpoint and tokens.access_token):
            return claims
        headers = {"Authorization": f"Bearer {tokens.access_token}"}
        more = await self._call("GET", endpoint, headers=headers)
        if more.get("sub") != claims["sub"]:
            raise NotGenuine("the provider's userinfo is about somebody else")
        return {**more, **claims}

    # --- what the provider says of itself

    async def _endpoint(self, name: str) -> str:
        return str((await self._known())[name])

    async def _known(self) -> dict[str, Any]:
        if self._clock() - self._metadata_at >= _FRESH_SECONDS:
            async with self._asking:
                if self._clock() - self._metadata_at >= _FRESH_SECONDS:
                    await self._remembering_failure(self._discover)
        return self._metadata

    async def _discover(self) -> None:
        issuer = self._settings.issuer
        found = await self._call("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise ProviderUnavailable(
                f"the provider calls itself {_short(found.get('issuer'))}: set OPTIMUS_OIDC__ISSUER to exactly that"
            )
        for name in _USED:
            url = found.get(name)
            if url is None and name in ("userinfo_endpoint", "device_authorization_endpoint"):
                continue
            if not isinstance(url, str) or not is_safe_url(url):
                raise ProviderUnavailable(f"the provider's {name} is no address that begins with https://")
        self._metadata, self._metadata_at = found, self._clock()

    async def _current_keys(self) -> KeySet:
        if self._keys is None or self._clock() - self._keys_at >= _FRESH_SECONDS:
            return await self._newer_keys()
        return self._keys

    async def _newer_keys(self) -> KeySet:
        """The keys of now; those that are known, where they were asked for a moment ago."""
        await self._known()
        async with self._asking:
            if self._keys is None or self._clock() - self._keys_at >= _NEW_KEYS_SECONDS:
                await self._remembering_failure(self._fetch_keys)
        if self._keys is None:
            raise ProviderUnavailable(self._failure)
        return self._keys

    async def _fetch_keys(self) -> None:
        self._keys_at = self._clock()  # also when it fails: a provider in trouble is not asked all the time
        self._keys = self._id_tokens.keys_in(await self._call("GET", self._metadata["jwks_uri"]))

    async def _remembering_failure(self, ask: Callable[[], Awaitable[None]]) -> None:
        if self._clock() - self._failed_at < _FAILED_SECONDS:
            raise ProviderUnavailable(self._failure)
        try:
            await ask()
        except ProviderUnavailable as error:
            self._failed_at, self._failure = self._clock(), str(error)
            raise

    # --- calls

    async def _token(self, form: Mapping[str, str]) -> dict[str, Any]:
        return await self._post(await self._endpoint("token_endpoint"), form)

    async def _post(self, url: str, form: Mapping[str, str]) -> dict[str, Any]:
        """A form with this client's name, and its password in the way that the provider takes it."""
        secret = self._settings.client_secret
        named = {**form, "client_id": self._settings.client_id}
        if secret is None:
            return await self._call("POST", url, data=named)
        ways = self._metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if "client_secret_basic" in ways:
            pair = urlencode({self._settings.client_id: secret.get_secret_value()}).replace("=", ":", 1)
            basic = base64.b64encode(pair.encode()).decode()
            return await self._call("POST", url, data=named, headers={"Authorization": f"Basic {basic}"})
        return await self._call("POST", url, data={**named, "client_secret": secret.get_secret_value()})

    async def _call(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """The JSON object that the provider answers; also with 400 to 404, where OAuth says what is wrong.

        Raises:
            ProviderUnavailable: it does not answer in time, or not with that.
        """
        if self._calls >= MAX_AT_ONCE:
            raise ProviderUnavailable("too many are signing in at this moment")
        self._calls += 1
        try:
            async with (
                asyncio.timeout(CALL_SECONDS),
                self._client.stream(method, url, **options) as answer,
            ):
                status, content = answer.status_code, await _content(answer)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            raise ProviderUnavailable(
                f"the OpenID provider at {urlsplit(url).netloc} does not answer: {said}"
            ) from error
        finally:
            self._calls -= 1
        if status != 200 and not (method == "POST" and 400 <= status <= 404):
            raise ProviderUnavailable(f"the OpenID provider answers {status} at {urlsplit(url).path}")
        try:
            document = json.loads(content)
        except ValueError as error:
            raise ProviderUnavailable(f"the OpenID provider answers no JSON at {urlsplit(url).path}") from error
        if not isinstance(document, dict):
            raise ProviderUnavailable(f"the OpenID provider answers no object at {urlsplit(url).path}")
        return document


async def _content(answer: httpx.Response) -> bytes:
    found = b""
    async for piece in answer.aiter_bytes():
        found += piece
        if len(found) > _MAX_BYTES:
            raise ProviderUnavailable("the OpenID provider answers more than a megabyte")
    return found


def _tokens(answer: Mapping[str, Any]) -> Tokens:
    id_token, access_token = answer.get("id_token"), answer.get("access_token")
    if not isinstance(id_token, str):
        raise NotGenuine("the provider gives no ID token: is openid among OPTIMUS_OIDC__SCOPES?")
    return Tokens(id_token, access_token if isinstance(access_token, str) else None)


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _short(value: object) -> str:
    """What somebody else wrote, as it may stand in a message."""
    return "".join(each for each in str(value)[:200] if each.isprintable())
