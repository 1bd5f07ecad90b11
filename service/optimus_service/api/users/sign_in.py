"""Signing in with the OpenID provider, on the page and from the command line, and signing out.

::

    GET  /v1/sso/start     ─▶ the provider (303) ─▶ GET /v1/sso/callback ─▶ a session in a cookie, the page (303)
    POST /v1/sso/device    ─▶ a code, entered in any browser
    POST /v1/sso/device/token   asked until somebody has: a token

A session is a token of the user in the store, as all others are: it expires, can be revoked, and follows the user's
rights, which each sign-in sets by the groups that the provider names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, cast
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from optimus_contract import answers
from optimus_contract.people import DeviceCode
from optimus_service.api.access import cookies
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented, problem_of, unavailable
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep
from optimus_service.api.users.people import token_body
from optimus_service.process.user_tokens import hash_of, new_token
from optimus_service.settings.oidc import OidcSettings
from optimus_service.sso.id_tokens import NotAdmitted, NotGenuine, ProviderUnavailable, person_of
from optimus_service.sso.provider import Provider, StillWaiting
from optimus_service.store.errors import StoreError, UserExists
from optimus_service.store.records import AuditRecord, TokenRecord, UserRecord

router = APIRouter(route_class=StrictRoute, tags=["people"])
browser = APIRouter(include_in_schema=False)
"""Where browsers are led to: no part of the API. Providers add parameters of their own."""

_NO_STORE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_Way = Literal["page", "device"]
_log = structlog.get_logger(__name__)


async def _provider_of(request: Request) -> Provider:
    provider = request.app.state.provider
    if provider is None:
        raise Problem(404, "this service has no OpenID provider (OPTIMUS_OIDC__ISSUER)")
    return cast(Provider, provider)


ProviderDep = Annotated[Provider, Depends(_provider_of)]


@router.get("/v1/sign-in")
def show_ways(services: ServicesDep) -> answers.SignInWays:
    """How one signs in to this service."""
    settings = services.settings
    return answers.SignInWays(
        token=settings.token is not None, sso=None if settings.oidc is None else settings.oidc.name
    )


@router.delete("/v1/session", status_code=204)
def sign_out(services: ServicesDep, caller: CallerDep, audit: AuditDep, response: Response) -> None:
    """Revoke the token that is sent, or that of the page's session. OPTIMUS_TOKEN stays."""
    audit.target = caller.token_id
    if caller.token_id is not None:
        services.repository.people.revoke_token(caller.token_id, services.clock())
    if services.settings.oidc is not None:
        cookies.end_session(response, services.settings.oidc)
    response.headers["Clear-Site-Data"] = '"storage"'


# --- the page --------------------------------------------------------------------------------------------------------


@browser.get("/v1/sso/start")
async def start_on_page(request: Request, services: ServicesDep, provider: ProviderDep) -> Response:
    """Lead to the provider. `return_to`: the view of the page (`#/...`) that the sign-in leads back to."""
    settings = _settings(services)
    begun = cookies.SignIn.begun(request.query_params.get("return_to"))
    try:
        with _explained():
            url = await provider.authorization_url(begun.state, begun.nonce, begun.verifier)
    except Problem as problem:
        return _to_page(f"#/sign-in/{_code(problem)}")
    answer = RedirectResponse(url, 303, _NO_STORE)
    cookies.set_sign_in(answer, settings, begun)
    return answer


@browser.get("/v1/sso/callback")
async def finish_on_page(request: Request, services: ServicesDep, provider: ProviderDep) -> Response:
    """Where the provider leads back to: makes the session, for the sign-in that this browser began, and no other."""
    settings = _settings(services)
    given, begun = request.query_params, cookies.sign_in_of(request, settings)
    if begun is None or not begun.is_answered_by(given.get("state")):
        answer = _to_page("#/sign-in/elsewhere")
    elif given.get("iss", settings.issuer) != settings.issuer or "code" not in given:
        answer = _to_page("#/sign-in/refused")
    else:
        try:
            secret = await _session(request, services, provider, begun, given["code"])
        except Problem as problem:
            answer = _to_page(f"#/sign-in/{_code(problem)}")
        else:
            answer = _to_page(begun.return_to)
            cookies.set_session(answer, settings, secret)
    cookies.end_sign_in(answer, settings)
    return answer


async def _session(request: Request, services: Services, provider: Provider, begun: cookies.SignIn, code: str) -> str:
    with _explained():
        claims = await provider.claims(await provider.exchange(code, begun.verifier), begun.nonce)
        return (await run_in_threadpool(_let_in, services, claims, "page", request.state.request_id)).secret


def _to_page(view: str) -> RedirectResponse:
    return RedirectResponse(f"/{view}", 303, _NO_STORE)


# --- the command line ------------------------------------------------------------------------------------------------


@router.post("/v1/sso/device", responses=documented(403, 404))
async def start_on_device(provider: ProviderDep, response: Response) -> answers.DeviceSignIn:
    """Begin a sign-in that is finished in a browser, on whatever device."""
    response.headers["Cache-Control"] = "no-store"
    with _explained():
        code = await provider.start_device()
    return answers.DeviceSignIn(
        device_code=code.device_code,
        user_code=code.user_code,
        verification_uri=code.verification_uri,
        verification_uri_complete=code.verification_uri_complete,
        expires_seconds=code.expires_seconds,
        interval_seconds=code.interval_seconds,
    )


@router.post("/v1/sso/device/token", responses=documented(403, 404))
async def finish_on_device(
    device: Annotated[DeviceCode, Body(openapi_examples=examples.DEVICES)],
    request: Request,
    services: ServicesDep,
    provider: ProviderDep,
    response: Response,
) -> answers.DeviceProgress:
    """Ask whether somebody has signed in: then the answer has a token of that user, this once."""
    response.headers["Cache-Control"] = "no-store"
    with _explained():
        found = await provider.poll_device(device.device_code)
        if isinstance(found, StillWaiting):
            return answers.DeviceProgress(made=None, slow_down=found.slow_down)
        claims = await provider.claims(found, None)
        made = await run_in_threadpool(_let_in, services, claims, "device", request.state.request_id)
    return answers.DeviceProgress(made=made, slow_down=False)


# --- both ------------------------------------------------------------------------------------------------------------


def _settings(services: Services) -> OidcSettings:
    return cast(OidcSettings, services.settings.oidc)  # there is a provider


def _let_in(services: Services, claims: dict[str, object], way: _Way, request_id: str) -> answers.MadeToken:
    """A token for somebody whom the provider vouches for, who is a user from now on."""
    settings, now = _settings(services), services.clock()
    person = person_of(claims, settings)
    token_id, secret = new_token()
    wanted = UserRecord(
        name=person.name,
        kind="person",
        role=person.role,
        projects=person.projects,
        created_at=now,
        created_by=person.name,
        subject=person.subject,
    )
    token = TokenRecord(
        id=token_id,
        user=person.name,
        name="session of the page" if way == "page" else "optimus login --sso",
        hash=hash_of(secret),
        scope="operate",
        projects=None,
        created_at=now,
        created_by=person.name,
        expires_at=now + (settings.session_seconds if way == "page" else settings.token_seconds),
    )
    data = {"by": way, "role": person.role, "projects": dict(person.projects), "groups": list(person.groups)}
    entry = AuditRecord(
        at=now,
        who=person.name,
        token_id=token_id,
        action="user.sign-in",
        target=token_id,
        project=None,
        data=data,
        request_id=request_id,
    )
    user = services.repository.people.sign_in(wanted, token, entry)
    structlog.get_logger("optimus.audit").info(
        "audit",
        who=user.name,
        token_id=token_id,
        action=entry.action,
        target=token_id,
        data=data,
        request_id=request_id,
    )
    return answers.MadeToken(token=token_body(services.repository.people.token(token_id)), secret=secret)


@contextmanager
def _explained() -> Iterator[None]:
    """Raises what can go wrong with the provider as problems; the log says more of it than the answer."""
    try:
        yield
    except ProviderUnavailable as error:
        _log.warning("sign-in", fault=str(error))
        raise unavailable(str(error)) from error
    except NotGenuine as error:
        _log.warning("sign-in", fault=str(error))
        raise _refusal("not-genuine", "what the OpenID provider says cannot be trusted; the log says why") from error
    except NotAdmitted as error:
        raise _refusal(error.code, str(error)) from error
    except UserExists as error:
        raise _refusal("name-taken", f"{error}, who is somebody else: ask an administrator") from error
    except StoreError as error:
        raise problem_of(error) from error


def _refusal(code: str, detail: str) -> Problem:
    return Problem(403, detail, errors=[answers.ProblemError(field="sign-in", message=code)])


def _code(problem: Problem) -> str:
    """What the page finds its words by."""
    return quote(problem.errors[0].message) if problem.status_code == 403 and problem.errors else "unavailable"
