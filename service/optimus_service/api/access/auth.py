"""Who may call what: everything is refused but what the table of rights (`rights`) gives the caller.

    /, /docs, /icon.svg, /assets/...    anybody: the programs of the pages, without any data
    /v1/jobs/{id}/telemetry and others  the job's own token, nothing else
    all the rest                        a user's token, in a header or in the session of the page, or OPTIMUS_TOKEN,
                                        which is the administrator's

A job of a project that the caller may not read is answered as one that is not there.

Without OPTIMUS_TOKEN the settings allow loopback only, and whoever sends no token is the administrator `local`; a token
that is not known is refused, so that a cut one of a member makes no administrator, but for what clients of other
programs report. Callers without a token are told from web pages: a page that a browser on this machine shows can send
requests to loopback, but they carry a foreign Origin, a Sec-Fetch-Site that says so (images and links have no Origin),
or (after DNS rebinding) a Host that is not loopback.

The path is the one that the router matches (`scope["path"]`), never a part of a URL that is built from headers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import (
    BOOTSTRAP,
    LOCAL,
    Caller,
    Need,
    caller_of,
)
from optimus_service.api.access.cookies import session_of
from optimus_service.api.access.limits import Throttle
from optimus_service.api.access.rights import TABLE, Call, calls_at
from optimus_service.api.http.problems import Problem, problem_of, respond
from optimus_service.api.http.web import is_asset_path
from optimus_service.process.job_tokens import JobTokens, is_job_token
from optimus_service.process.user_tokens import id_in, is_secret_of, is_user_token
from optimus_service.settings import Settings, is_loopback
from optimus_service.store.errors import DatabaseNotAvailable, JobNotFound, StoreError
from optimus_service.store.recording import RecordingRepository
from optimus_service.store.records import JobRecord, TokenRecord, UserRecord
from optimus_service.store.repository import Repository

_OPEN_PATHS = frozenset(call.path for call in TABLE if call.need is Need.NOTHING)
_JOB_PATHS = frozenset(call.path for call in TABLE if call.need is Need.OWN_TASKS)
_JOB_PATH = re.compile(f"/v1/jobs/([^/]+)/(?:{'|'.join(sorted({path.rpartition('/')[2] for path in _JOB_PATHS}))})")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/]+)(?::\d{1,5})?")
"""Host and port as in a Host header."""
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
"""No path of ours has one, and a router's `$` takes a path with a line break at its end for the path without it."""
_OTHER_SITES = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site for requests of pages that are not ours; another port of this machine is the same site."""
_MAX_NONCES = 10_000
"""Nonces kept in memory: about 1 MB. A nonce never changes."""
_USE_SECONDS = 60.0
"""How often the last use of a token is written at most."""


def is_open_path(path: str) -> bool:
    """Whether anybody may call it. Also takes route templates."""
    return path in _OPEN_PATHS or is_asset_path(path)


def is_job_path(path: str) -> bool:
    """Whether it needs the token of the job in the path. Also takes route templates."""
    return _JOB_PATH.fullmatch(path) is not None


class AccessMiddleware:
    """Answers requests that may not be made, passes the others on with their caller, and records what they change."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings,
        job_tokens: JobTokens,
        repository: Repository,
        clock: Callable[[], float],
    ) -> None:
        self._app = app
        self._repository = repository
        self._clock = clock
        self._settings = settings
        self._throttle = Throttle()
        self._users = UserAccess(settings, repository, clock)
        self._jobs = JobAccess(job_tokens, repository.jobs.get)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; other kinds of traffic (lifespan) pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            recording = await self._admitted(request)
        except Problem as problem:
            await respond(request, problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send if recording is None else _recorded(recording, request, receive, send))
        # Only now: a database whose writers wait for each other answers those who read nevertheless.
        used: TokenRecord | None = getattr(request.state, "token", None)
        if used is not None and self._users.is_use_due(used):
            await run_in_threadpool(self._users.note_use, used)

    async def _admitted(self, request: Request) -> RecordingRepository | None:
        """Where a request that may be made is recorded; None: nothing is.

        Raises:
            Problem: it may not be made.
        """
        _refuse_ambiguous(request)
        path: str = request.scope["path"]
        if not _CONTROL_CHARACTER.search(path):
            if is_open_path(path):
                return None
            n = len(request.headers.getlist("authorization"))
            if n > 1:  # a proxy in front may look at another one than this service
                raise _unauthorized(f"send one Authorization header, not {n}", ', error="invalid_request"')
            match = _JOB_PATH.fullmatch(path)
            if match is not None:
                objection = self._users.objection_to_page(request) or await self._jobs.objection(request, match[1])
                if objection is not None:
                    raise objection
                return None
        caller = await self._users.caller(request)
        self._throttle.refuse(caller, self._settings)
        request.state.caller = caller
        request.state.is_still_good = partial(self._users.is_still, self._users.token_of(request), caller)
        return await self._allowed(caller, request, path)

    async def _allowed(self, caller: Caller, request: Request, path: str) -> RecordingRepository | None:
        calls = {} if _CONTROL_CHARACTER.search(path) else calls_at(path)
        if not calls:
            raise Problem(404, "nothing is at this path")
        if request.method not in calls:
            methods = ", ".join(sorted(calls))
            raise Problem(405, f"allowed here: {methods}", headers={"Allow": methods})
        call, parameters = calls[request.method]
        job = await self._job(caller, call, parameters)
        if not caller.has(call.need) or (call.need is Need.CHANGE_JOB and job is not None and not caller.changes(job)):
            of = "" if job is None else caller.whose(job)
            raise Problem(403, f"{caller.name} may not do this: {of}{call.need.words}")
        if call.action is None:
            request.state.repository = self._repository.reading()
            return None
        target, project = next(iter(parameters.values()), None), None if job is None else job.project
        request_id = getattr(request.state, "request_id", None)
        request.state.audit = Audit(self._clock, caller, call.action, target, project, request_id)
        request.state.repository = recording = RecordingRepository(self._repository, request.state.audit)
        return recording

    async def _job(self, caller: Caller, call: Call, parameters: dict[str, str]) -> JobRecord | None:
        """The job that the call is about; None: it is about none, or nothing depends on which it is.

        Raises:
            Problem: there is none that the caller may read.
        """
        reads = call.action is None and call.need is not Need.CHANGE_JOB
        if not call.need.is_about_a_job or (caller.projects is None and reads):
            return None
        job_id = parameters["job_id"]
        try:
            job = await run_in_threadpool(self._repository.jobs.get, job_id)
        except StoreError as error:
            raise problem_of(error) from error
        if not caller.reads(job.project):
            raise problem_of(JobNotFound(job_id))
        return job


def _recorded(recording: RecordingRepository, request: Request, receive: Receive, send: Send) -> Send:
    """Sends answers, and sees to it that those which changed nothing are recorded before that, too."""
    refused = False

    async def recorded(message: Message) -> None:
        nonlocal refused
        if message["type"] == "http.response.start" and message["status"] < 300:
            try:
                await run_in_threadpool(recording.record_unchanged)
            except DatabaseNotAvailable as error:
                refused = True
                await respond(request, problem_of(error))(request.scope, receive, send)
        if not refused:
            await send(message)

    return recorded


_OF_OTHER_PROGRAMS = ("/v1/track/", "/api/2.0/mlflow/")
"""Calls of clients that are not ours, of which some cannot send no token: any will do where the service needs none."""


class UserAccess:
    """Which user a request comes from. Of OPTIMUS_TOKEN, and the one before it, only hashes are kept in memory."""

    def __init__(self, settings: Settings, repository: Repository, clock: Callable[[], float]) -> None:
        given = (settings.token, settings.previous_token)
        self._token_hashes = [_hash(token.get_secret_value()) for token in given if token is not None]
        self._oidc = settings.oidc
        self._repository = repository
        self._clock = clock
        self._noting = threading.Lock()

    async def caller(self, request: Request) -> Caller:
        """Who makes this request.

        Raises:
            Problem: nobody who may.
        """
        token = self.token_of(request)
        if token is not None and is_job_token(token):
            raise Problem(403, "a job's token is good for what the job's own tasks tell of it only")
        if token is not None and is_user_token(token):
            request.state.token, user = await run_in_threadpool(self._good, token)
            return caller_of(request.state.token, user)
        sends_nothing = token is None and request.headers.get("authorization", "").strip().lower() in ("", "bearer")
        if (sends_nothing or request.scope["path"].startswith(_OF_OTHER_PROGRAMS)) and not self._token_hashes:
            objection = self.objection_to_page(request)
            if objection is not None:
                raise objection
            return LOCAL
        if token is None:
            raise _unauthorized("send Authorization: Bearer with your token, or with the service's OPTIMUS_TOKEN")
        if sum(hmac.compare_digest(_hash(token), each) for each in self._token_hashes) == 0:  # none is left out
            needs_none = "without OPTIMUS_TOKEN this service needs no token, or a user's: "
            known = "the token is not known to this service"
            raise _unauthorized(known if self._token_hashes else needs_none + known, ', error="invalid_token"')
        return BOOTSTRAP

    def token_of(self, request: Request) -> str | None:
        """The token of the header, or of the page's session.

        Raises:
            Problem: the request has a session and is not the page's.
        """
        return bearer_token(request) or session_of(request, self._oidc)

    def _good(self, secret: str) -> tuple[TokenRecord, UserRecord]:
        token_id = id_in(secret)
        try:
            found = None if token_id is None else self._repository.people.token_with_user(token_id)
        except StoreError as error:
            raise problem_of(error) from error
        # One answer for all that is wrong with it: whoever has half a token learns nothing of the rest.
        if found is None or not is_secret_of(secret, found[0].hash) or not found[0].is_good(self._clock()):
            raise _unauthorized("this token is not known, or no longer good", ', error="invalid_token"')
        return found

    def is_still(self, secret: str | None, caller: Caller) -> bool:
        """Whether this token is still good, for the same rights; for requests that take long."""
        if secret is None or caller.token_id is None:
            return True
        try:
            token, user = self._good(secret)
        except Problem as problem:
            return problem.status_code != 401  # a database that is away for a moment says nothing against it
        if self.is_use_due(token):
            self.note_use(token)
        return caller_of(token, user) == caller

    def is_use_due(self, token: TokenRecord) -> bool:
        """Whether the last use that is written is too old."""
        return token.used_at is None or not 0 <= self._clock() - token.used_at < _USE_SECONDS

    def note_use(self, token: TokenRecord) -> None:
        """Write that the token is used, unless such a write is under way: the next request of the token does it.

        So one thread at most waits for a database that takes nothing at the moment.
        """
        if not self._noting.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(DatabaseNotAvailable):
                self._repository.people.note_use(token.id, self._clock())
        finally:
            self._noting.release()

    def objection_to_page(self, request: Request) -> Problem | None:
        """Why a request may not be made that a web page may have sent, None when it may; pages have no OPTIMUS_TOKEN,
        so where one is needed they are harmless."""
        if self._token_hashes:
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


_ONCE = ("idempotency-key", "content-type")
"""Headers of which a second one would leave open which counts."""


def _refuse_ambiguous(request: Request) -> None:
    """Raise `Problem` (400) for a request that a proxy in front may read in another way than this service."""
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        detail = "send Content-Length or Transfer-Encoding, not both"
        raise Problem(400, detail, headers={"Connection": "close"})  # RFC 9112, 6.1
    for name in _ONCE:
        if len(request.headers.getlist(name)) > 1:
            raise Problem(400, f"send one {'-'.join(part.capitalize() for part in name.split('-'))} header")


def _unauthorized(detail: str, error: str = "") -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": f'Bearer realm="optimus"{error}'})


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
