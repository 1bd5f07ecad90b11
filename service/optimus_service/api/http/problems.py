"""Errors as RFC 9457 problem documents (`application/problem+json`), whoever raised them.

Problem                     what our own code raises: status, kind, detail, the fields at fault
HTTPException (Starlette)   404, 405 of the router
RequestValidationError      422 of FastAPI, reworded in `validation`
StoreError and the like     mapped by `problem_of`
anything else               500, with the request id and nothing of the inside
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from optimus_contract import answers
from optimus_contract.codec import write
from optimus_scheduler.lifecycle import InvalidTransition, JobStatus, ResumeRequested
from optimus_scheduler.model import Directive, JobState
from optimus_service.api.http.validation import field_errors
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.observe.spec import UnreadableSpecification
from optimus_service.push.feed import MAX_STREAMS_OF_USER, TooManyStreamsOfUser, TooManySubscribers
from optimus_service.push.long_poll import TooManyWaiters
from optimus_service.store import errors as store_errors
from optimus_service.store.samples.sample_queue import QueueIsFull

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
"""A database or cluster that restarts is usually back soon, and asking is cheap."""
_TYPE_PREFIX = "urn:optimus:problem:"

TITLES = {
    "invalid-json": "The body is not JSON",
    "invalid-request": "The request is not valid",
    "unauthorized": "A token is needed",
    "forbidden": "Not allowed",
    "not-found": "There is no such thing",
    "method-not-allowed": "This method is not supported here",
    "conflict": "The present state does not allow this",
    "idempotency-conflict": "The idempotency key was used for something else",
    "too-large": "The body is too large",
    "unsupported-media-type": "The body must be JSON",
    "too-many-requests": "Too many requests at one time",
    "unavailable": "Not available right now",
    "internal": "Something went wrong inside the service",
}
"""Every kind of problem with its title. The kind is the last part of `type`."""

_KIND_OF_STATUS = {
    400: "invalid-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    409: "conflict",
    413: "too-large",
    415: "unsupported-media-type",
    422: "invalid-request",
    429: "too-many-requests",
    503: "unavailable",
}


class Problem(HTTPException):
    """An error answer. `field` and `message` pairs in `errors` name what is wrong with the request."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        errors: Sequence[answers.ProblemError] = (),
        headers: Mapping[str, str] | None = None,
        cause: str | None = None,
    ) -> None:
        """`cause`: what the log says beyond `detail`; the answer does not."""
        super().__init__(status, detail, headers)
        self.cause = cause
        self.kind = kind or _KIND_OF_STATUS[status]
        self.errors = tuple(errors)


def invalid(errors: Sequence[answers.ProblemError]) -> Problem:
    """A request that is well-formed and not acceptable (422)."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem(422, f"{first.field}: {first.message}{more}", errors=errors)


def invalid_field(field: str, message: str) -> Problem:
    """The same with one field at fault."""
    return invalid([answers.ProblemError(field=field, message=message)])


def problem_of(error: Exception) -> Problem:
    """What to answer when an endpoint raised `error`. Unknown errors give 500 without saying what they are."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return invalid(field_errors(error.errors()))
        case HTTPException():
            return _of_http(error)
        case (
            store_errors.JobNotFound()
            | store_errors.ProjectNotFound()
            | store_errors.UserNotFound()
            | store_errors.TokenNotFound()
        ):
            return Problem(404, str(error))
        case store_errors.InvalidCursor():
            return invalid_field("cursor", "must be the next_cursor of an earlier answer of this list")
        case store_errors.InvalidValue():
            return Problem(422, str(error))
        case store_errors.IdempotencyConflict():
            made = "another request" if error.job_id is None else f"job {error.job_id}"
            where = answers.ProblemError(field="Idempotency-Key", message=f"was used for {made}")
            return Problem(409, str(error), kind="idempotency-conflict", errors=[where])
        case UnreadableSpecification() | store_errors.JobIsActive() | store_errors.UserExists():
            return Problem(409, str(error))
        case InvalidTransition(status=status, event=ResumeRequested()) if not _ends(status):
            return Problem(409, "the job is not paused by its owner: it trains, or does so by itself as soon as it can")
        case InvalidTransition():
            return Problem(409, f"the job {_standing(error.status)} already")
        case TooManyStreamsOfUser():
            detail = f"{MAX_STREAMS_OF_USER} streams of this user are open already"
            return Problem(429, detail, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        case QueueIsFull():
            detail = "more telemetry comes than can be stored right now"
            return Problem(429, detail, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        case store_errors.DatabaseNotAvailable() | ClusterUnavailable() | TooManyWaiters() | TooManySubscribers():
            return unavailable(_unavailable_detail(error), cause=str(error))
        case _:
            detail = "the service's log says more under this request id"
            # The server closes the connection after such an answer; a client that is not told uses it once more.
            return Problem(500, detail, kind="internal", headers={"Connection": "close"})


def unavailable(detail: str, errors: Sequence[answers.ProblemError] = (), *, cause: str | None = None) -> Problem:
    """A part of the service is away for now (503): trying again is right. `cause`: what the log says of it."""
    return Problem(503, detail, errors=errors, headers={"Retry-After": str(RETRY_AFTER_SECONDS)}, cause=cause)


def respond(request: Request, problem: Problem) -> Response:
    """The problem document as a response to `request`. The line in the log says why the service is at fault."""
    if problem.status_code >= 500:
        request.state.cause = problem.cause or problem.detail
    body = document_of(problem, getattr(request.state, "request_id", None))
    # ASCII: field names come from the client and may hold half a surrogate pair, which UTF-8 cannot say.
    content = json.dumps(write(body), ensure_ascii=True)
    headers = dict(problem.headers or {}) | ({"X-Request-ID": body.request_id} if body.request_id else {})
    return Response(content, problem.status_code, headers, MEDIA_TYPE)


def document_of(problem: Problem, request_id: str | None = None) -> answers.Problem:
    """The problem document."""
    return answers.Problem(
        type=_TYPE_PREFIX + problem.kind,
        title=TITLES[problem.kind],
        status=problem.status_code,
        detail=problem.detail,
        errors=list(problem.errors),
        request_id=request_id,
    )


async def _handle(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        error = _method_not_allowed(request)
    return respond(request, problem_of(error))


def _method_not_allowed(request: Request) -> Problem:
    """405 with all methods of the path: the router itself names those of one route only."""
    routes: Sequence[Route] = request.app.state.api_routes
    here = [route.methods or set() for route in routes if route.path_regex.match(request.scope["path"])]
    methods = ", ".join(sorted(set().union(*here)))
    return Problem(405, f"allowed here: {methods}", headers={"Allow": methods})


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Let `app`, which has these `routes`, answer every error with a problem document."""
    app.state.api_routes = [route for route in routes if isinstance(route, Route)]
    handled: tuple[type[Exception], ...] = (
        HTTPException,
        RequestValidationError,
        InvalidTransition,
        UnreadableSpecification,
        ClusterUnavailable,
        TooManyWaiters,
        TooManyStreamsOfUser,
        TooManySubscribers,
        QueueIsFull,
        store_errors.StoreError,
        Exception,
    )
    for kind in handled:
        app.add_exception_handler(kind, _handle)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the error answers of an endpoint."""
    reference = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": reference}}}
        for status in statuses
    }


def _of_http(error: HTTPException) -> Problem:
    if error.status_code == 404:
        return Problem(404, "nothing is at this path")
    kind = _KIND_OF_STATUS.get(error.status_code, "invalid-request" if error.status_code < 500 else "internal")
    return Problem(error.status_code, str(error.detail), kind=kind, headers=error.headers)


def _ends(status: JobStatus) -> bool:
    return status.state.is_final or status.directive in (Directive.FINISH, Directive.CANCEL)


def _standing(status: JobStatus) -> str:
    """Where the job is, in words: `has failed`, `is being cancelled`."""
    ending = {Directive.FINISH: "finished", Directive.CANCEL: "cancelled"}.get(status.directive)
    if ending is not None and not status.state.is_final:
        return f"is being {ending}"
    return f"{'has' if status.state in (JobState.SUCCEEDED, JobState.FAILED) else 'is'} {status.state}"


def _unavailable_detail(error: Exception) -> str:
    if isinstance(error, ClusterUnavailable):
        return "the cluster cannot be asked right now"
    if isinstance(error, TooManyWaiters):
        return "too many long polls are held already"
    if isinstance(error, TooManySubscribers):
        return "as many watch this replica as there may be"
    return error.for_users if isinstance(error, store_errors.DatabaseNotAvailable) else "try again in a moment"
