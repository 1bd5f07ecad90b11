"""The cookies of the page: the session of whoever signed in, and a sign-in that is under way.

Both are HttpOnly, so that no program of a page can read them, and Secure where browsers reach the service by https. A
cookie travels with every request of the browser, whoever causes it. So a session counts only for requests with the
header `X-Optimus-Page`, which no page of another site can send without being allowed to (CORS; nobody is), and which
say of themselves that they come from this site; and its cookie is SameSite=Strict.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import secrets
from dataclasses import asdict, dataclass

from fastapi import Request, Response

from optimus_service.api.http.problems import Problem
from optimus_service.settings.oidc import OidcSettings

PAGE_HEADER = "x-optimus-page"
SIGN_IN_SECONDS = 600
"""How long one may take at the provider."""
_FRAGMENT = re.compile(r"#/[A-Za-z0-9/_.~%?=&,+-]{0,200}")
"""Views of the page, the only places that a sign-in leads back to."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that is under way in one browser. What ties the provider's answer to it is in its cookie only."""

    state: str
    nonce: str
    verifier: str
    return_to: str

    @classmethod
    def begun(cls, return_to: str | None) -> SignIn:
        """A new one, which leads to a view of the page and nowhere else."""
        view = return_to if return_to is not None and _FRAGMENT.fullmatch(return_to) else "#/"
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), view)

    def is_answered_by(self, state: str | None) -> bool:
        """Whether the provider's answer is to this sign-in."""
        return state is not None and hmac.compare_digest(self.state.encode(), state.encode("utf-8", "replace"))


def session_of(request: Request, settings: OidcSettings | None) -> str | None:
    """The token of the session that a request of the page belongs to; None: it has none.

    Raises:
        Problem: it is not the page that asks.
    """
    found = None if settings is None else request.cookies.get(_name("session", settings))
    if found is None or settings is None or PAGE_HEADER not in request.headers:
        return None
    origin = request.headers.get("origin", settings.public_url)
    if origin != settings.public_url or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Problem(403, f"a session is good for requests of the page at {settings.public_url} only")
    return found


def set_session(answer: Response, settings: OidcSettings, secret: str) -> None:
    """Give the browser its session."""
    _set(answer, "session", settings, secret, int(settings.session_seconds), strict=True)


def end_session(answer: Response, settings: OidcSettings) -> None:
    """Take it back."""
    _set(answer, "session", settings, "", 0, strict=True)


def set_sign_in(answer: Response, settings: OidcSettings, sign_in: SignIn) -> None:
    """Let the browser remember a sign-in; it has to come back with it from the provider, another site."""
    text = base64.urlsafe_b64encode(json.dumps(asdict(sign_in)).encode()).decode()
    _set(answer, "sign-in", settings, text, SIGN_IN_SECONDS, strict=False)


def end_sign_in(answer: Response, settings: OidcSettings) -> None:
    """Let it be forgotten: the provider's answer is good once."""
    _set(answer, "sign-in", settings, "", 0, strict=False)


def sign_in_of(request: Request, settings: OidcSettings) -> SignIn | None:
    """The sign-in that is under way in this browser."""
    text = request.cookies.get(_name("sign-in", settings), "")
    try:
        values = json.loads(base64.urlsafe_b64decode(text.encode()))
        found = SignIn(*(str(values[name]) for name in ("state", "nonce", "verifier", "return_to")))
    except (ValueError, TypeError, KeyError):
        return None
    return found if _FRAGMENT.fullmatch(found.return_to) else None


def _name(kind: str, settings: OidcSettings) -> str:
    """`__Host-`: browsers take such a cookie by https from this host alone, not from one beside or above it."""
    return f"{'__Host-' if settings.is_secure else ''}optimus-{kind}"


def _set(answer: Response, kind: str, settings: OidcSettings, value: str, seconds: int, *, strict: bool) -> None:
    answer.set_cookie(
        _name(kind, settings),
        value,
        max_age=seconds,
        path="/",
        secure=settings.is_secure,
        httponly=True,
        samesite="strict" if strict else "lax",
    )
