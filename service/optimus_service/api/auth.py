"""Who may call what. Everything needs the user's token, except what is listed here: forgetting a rule closes a door.

    /healthz, /readyz                                    anybody: load balancers and kubelets have no token
    /, /docs, /icon.svg, /assets/...                     anybody: the programs of the pages, without any data
    /v1/jobs/{id}/telemetry|membership|profile|network|learning-rates|result    the job's own token, nothing else
    all the rest                                         the user's token (OPTIMUS_TOKEN)

Without a user's token the settings allow loopback only. Then users are told from web pages instead: a page that a
browser on this machine shows can send requests to loopback, but they carry a foreign Origin, a Sec-Fetch-Site that says
so (images and links have no Origin), or (after DNS rebinding) a Host that is not loopback.

The path is the one that the router matches (`scope["path"]`), never a part of a URL that is built from headers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from optimus_service.api.problems import Problem, problem_of, respond
from optimus_service.api.web import is_asset_path
from optimus_service.process.job_tokens import JobTokens, is_job_token
from optimus_service.settings import Settings, is_loopback
from optimus_service.store.errors import DatabaseNotAvailable, JobNotFound
from optimus_service.store.records import JobRecord

_OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_JOB_PATH = re.compile(r"/v1/jobs/([^/]+)/(?:telemetry|membership|profile|network|learning-rates|result)")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/]+)(?::\d{1,5})?")
"""Host and port as in a Host header."""
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
"""No path of ours has one, and a router's `$` takes a path with a line break at its end for the path without it."""
_OTHER_SITES = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site for requests of pages that are not ours; another port of this machine is the same site."""
_MAX_NONCES = 10_000
"""Nonces kept in memory: about 1 MB. A nonce never changes."""


def is_open_path(path: str) -> bool:
    """Whether anybody may call it. Also takes route templates."""
    return path in _OPEN_PATHS or is_asset_path(path)


def is_job_path(path: str) -> bool:
    """Whether it needs the token of the job in the path. Also takes route templates."""
    return _JOB_PATH.fullmatch(path) is not None


class AccessMiddleware:
    """Answers requests that may not be made, and passes the others on."""

    def __init__(
        self, app: ASGIApp, *, settings: Settings, job_tokens: JobTokens, get_job: Callable[[str], JobRecord]
    ) -> None:
        self._app = app
        self._users = UserAccess(settings)
        self._jobs = JobAccess(job_tokens, get_job)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; other kinds of traffic (lifespan) pass."""
        if scope["type"] == "http":
            request = Request(scope)
            problem = await self._objection(request)
            if problem is not None:
                await respond(request, problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _objection(self, request: Request) -> Problem | None:
        path: str = request.scope["path"]
        if _CONTROL_CHARACTER.search(path):
            return self._users.objection(request) or Problem(404, "nothing is at this path")
        if is_open_path(path):
            return None
        match = _JOB_PATH.fullmatch(path)
        if match is None:
            return self._users.objection(request)
        return self._users.objection_to_page(request) or await self._jobs.objection(request, match[1])


class UserAccess:
    """Whether a request comes from a user. Of the user's token only the hash is kept in memory."""

    def __init__(self, settings: Settings) -> None:
        self._token_hash = None if settings.token is None else _hash(settings.token.get_secret_value())

    def objection(self, request: Request) -> Problem | None:
        """Why this request may not be made, None when it may."""
        token = bearer_token(request)
        if token is not None and is_job_token(token):
            return Problem(403, "a job's token is good for what the job's own tasks tell of it only")
        if self._token_hash is None:
            return self.objection_to_page(request)
        if token is None:
            return _unauthorized("send Authorization: Bearer with the service's OPTIMUS_TOKEN")
        if not hmac.compare_digest(_hash(token), self._token_hash):
            return _unauthorized("this is not the service's token", ', error="invalid_token"')
        return None

    def objection_to_page(self, request: Request) -> Problem | None:
        """The same for requests that a web page may have sent; pages have no token, so with one they are harmless."""
        if self._token_hash is not None:
            return None
        host = request.headers.get("host", "")
        if not _names_loopback(host):
            return Problem(403, "without OPTIMUS_TOKEN the service answers to loopback names only (Host header)")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return Problem(403, "without OPTIMUS_TOKEN requests from web pages of other origins are refused")
        if request.headers.get("sec-fetch-site") in _OTHER_SITES:
            return Problem(403, "without OPTIMUS_TOKEN requests that pages of other sites cause are refused")
        return None


class JobAccess:
    """Whether a request comes from the tasks of the job that it is about."""

    def __init__(self, job_tokens: JobTokens, get_job: Callable[[str], JobRecord]) -> None:
        self._job_tokens = job_tokens
        self._get_job = get_job
        self._nonces: OrderedDict[str, str] = OrderedDict()

    async def objection(self, request: Request, job_id: str) -> Problem | None:
        """Why this request may not be made, None when it may. An unknown job has no token that is good for it."""
        token = bearer_token(request)
        if token is None:
            return _unauthorized("send Authorization: Bearer with the job's OPTIMUS_JOB_TOKEN")
        if is_job_token(token):
            try:
                nonce = await self._nonce(job_id)
            except DatabaseNotAvailable as error:
                return problem_of(error)
            if nonce is not None and self._job_tokens.verify(token, job_id, nonce):
                return None
        return Problem(403, "this is not the token of this job")

    async def _nonce(self, job_id: str) -> str | None:
        known = self._nonces.get(job_id)
        if known is not None:
            self._nonces.move_to_end(job_id)
            return known
        try:
            job = await run_in_threadpool(self._get_job, job_id)
        except JobNotFound:
            return None
        self._nonces[job_id] = job.token_nonce
        if len(self._nonces) > _MAX_NONCES:
            self._nonces.popitem(last=False)
        return job.token_nonce


def bearer_token(request: Request) -> str | None:
    """The token of the Authorization header; None when there is none of the kind Bearer."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _names_loopback(authority: str) -> bool:
    match = _AUTHORITY.fullmatch(authority)
    return match is not None and is_loopback(match[1].strip("[]").lower())


def _unauthorized(detail: str, error: str = "") -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": f'Bearer realm="optimus"{error}'})


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
