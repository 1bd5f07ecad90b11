"""Around every request: an id, a line in the log, a count in the metrics."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from typing import Any
from urllib.parse import quote

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from optimus_service.metrics.registry import Metrics

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Ids that are taken over from the client: short, and harmless in a log line."""
_QUIET_PATHS = re.compile(r"/(healthz|readyz|metrics|v1/jobs/[^/]+/(telemetry|membership))")
"""Called every few seconds by machines: when they go well, they are worth a line for debugging only."""
_JOB_PATH = re.compile(r"/v1/jobs/([a-z0-9-]{1,63})(?:/|$)")
_OTHER_ROUTE = "(none)"
"""Stands for all paths that no route has, so that the metric's labels stay few."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LONGEST_PATH = 300

_log = structlog.get_logger("optimus.access")


class ObserveMiddleware:
    """Gives requests ids (`X-Request-ID`, in and out), and logs and measures them."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and watch it. An exception counts as 500 and goes on to the outside."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500
        self._metrics.count_in_progress(1)
        started = time.monotonic()

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                if scope.get("scheme") == "https":  # its own, or a trusted proxy's (X-Forwarded-Proto)
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        error: Exception | None = None
        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id, **_job_of(scope)):
                await self._app(scope, receive, watched_send)
        except Exception as unexpected:
            error = unexpected
            raise
        except asyncio.CancelledError:
            scope["state"].setdefault("cause", "it was cancelled")
            status = 503 if status == 500 else status
            raise
        finally:
            self._metrics.count_in_progress(-1)
            self._record(scope, status, time.monotonic() - started, error)

    def _record(self, scope: Scope, status: int, seconds: float, error: Exception | None) -> None:
        status = scope["state"].get("answered", status)  # by the connection, in place of the API
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        route = getattr(scope.get("route"), "path", _OTHER_ROUTE)
        self._metrics.observe_request(method, route, status, seconds)
        _log_request(scope, method, status, seconds, error)


def _log_request(scope: Scope, method: str, status: int, seconds: float, error: Exception | None) -> None:
    path = scope["path"]
    quiet = status < 400 and _QUIET_PATHS.fullmatch(path) is not None
    write = _log.debug if quiet else _log.info if status < 500 else _log.error
    fields: dict[str, Any] = {
        "method": method,
        # As it was sent, in percent signs: a decoded line break would let a client write log lines of its own.
        "path": quote(path, errors="replace")[:_LONGEST_PATH],
        "status": status,
        "seconds": round(seconds, 4),
        "client": (scope.get("client") or ("unknown",))[0],
        "request_id": scope["state"]["request_id"],
    }
    if error is not None:
        fields["exc_info"] = error
    elif "cause" in scope["state"]:
        fields["cause"] = scope["state"]["cause"]
    write("request", **fields)


def _job_of(scope: Scope) -> dict[str, str]:
    """The job that the request is about, for every line that is logged on its behalf."""
    match = _JOB_PATH.match(scope["path"])
    return {} if match is None else {"job_id": match[1]}


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
