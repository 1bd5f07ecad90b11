"""Bounds for connections to the API and for file descriptors: whoever opens them and sends nothing stops nobody else.

::

    accepted ─▶ head of a request ─▶ its body ─▶ answer ─▶ (kept alive) head of the next request ...
                HEAD_SECONDS         BODY_SECONDS  nothing read for WRITE_SECONDS: closed
                                     PAUSE_SECONDS

Each phase has a deadline, which bytes that drip in do not move. A body that comes quicker than the slowest rate allowed
moves its own, and must not pause. All connections together leave descriptors to the database, to tasks and to logs. One
more than that takes the place of the one that has waited longest without a request in progress; where all have one, it
is closed with 503. Bodies that are not complete hold `MAX_UNFINISHED_BYTES` together: beyond that, the one that has
taken longest is given up. When the service is stopped, requests that are not done in time are answered with 503, before
uvicorn cancels them.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from optimus_contract.limits import MAX_BATCH_BODY_BYTES, MAX_BODY_BYTES

MAX_CONNECTIONS = 16_000
"""Above the long polls that may wait at one time (`long_poll.MAX_WAITERS`); some 20 KB of memory each."""
_WANTED = 65_536
_RESERVED = 512
"""Descriptors for all else: database connections (50 of SQLite have three files each), tasks, logs, and those that are
accepted at once."""


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as the system permits, up to what is of use; the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def most_connections(descriptors: int) -> int:
    """How many connections may be open with so many file descriptors (negative: no limit). Pure."""
    if descriptors < 0:
        return MAX_CONNECTIONS
    return max(min(MAX_CONNECTIONS, descriptors - min(_RESERVED, descriptors // 2)), 1)


def connections_now() -> int:
    """The same with the limit that is in force."""
    return most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def waiting_now(most: int, part: float) -> int:
    """How many may wait at one time: `most`, and no more than this part of all connections."""
    return max(min(most, int(part * connections_now())), 1)


HEAD_SECONDS = 10.0
"""From the moment a connection is open, or its last answer was sent, until the head of a request is complete."""
MAX_HEAD_BYTES = 16 * 1024
"""Of a request: its first line and its headers, however they come."""
BODY_SECONDS = 60.0
"""From then until its body is complete, and longer by what its bytes take at `BODY_BYTES_PER_SECOND`."""
BODY_BYTES_PER_SECOND = MAX_BODY_BYTES / BODY_SECONDS
PAUSE_SECONDS = 20.0
"""How long nothing may come of a body while the service waits for more of it."""
WRITE_SECONDS = 60.0
"""How long an answer may wait for its reader."""
ACCEPTED_AT_ONCE = 32
"""Connections that one turn of the event loop accepts before it looks at any of them."""
MAX_UNFINISHED_BYTES = 64 * 2**20
"""Bytes of bodies that are not complete, of all connections together: each may have 1 MiB, and there are many."""
_WARN_SECONDS = 60.0
"""Between warnings that all connections are in use."""
_SECONDS = {"head": HEAD_SECONDS, "body": BODY_SECONDS, "pause": PAUSE_SECONDS}
_STOP_SECONDS = 1.0
"""So long before uvicorn cancels what still runs at a stop, it is answered."""


def _answer(status: HTTPStatus, kind: str, title: str, detail: str, more: str = "") -> bytes:
    """A problem document (`optimus_service.api.http.problems`) as it goes over a connection that closes then.

    For what never becomes a request of the API.
    """
    problem = {"type": f"urn:optimus:problem:{kind}", "title": title, "status": status, "detail": detail}
    body = json.dumps({**problem, "errors": [], "request_id": None})
    head = f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\n{more}"
    return f"{head}Content-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


_BUSY = _answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable",
    "Not available right now",
    "all connections are in use",
    "Retry-After: 2\r\n",
)
_TOO_LATE = _answer(
    HTTPStatus.REQUEST_TIMEOUT, "timeout", "The request took too long", f"its head took over {HEAD_SECONDS:.0f} s"
)
_BODY_TOO_LATE = _answer(
    HTTPStatus.REQUEST_TIMEOUT,
    "timeout",
    "The request took too long",
    f"nothing of its body came for {PAUSE_SECONDS:.0f} s, or the body took over {BODY_SECONDS:.0f} s at less than "
    f"{BODY_BYTES_PER_SECOND / 1000:.0f} KB/s",
)
_STOPPED = _answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable",
    "Not available right now",
    "the service is being stopped",
    "Retry-After: 2\r\n",
)
_TOO_LARGE = _answer(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "too-large",
    "The body is too large",
    f"a chunk of the body is larger than any body may be ({MAX_BATCH_BODY_BYTES} bytes)",
)
_TOO_LONG = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_HEAD_TOO_LONG = f"its head (first line and headers) has more than {MAX_HEAD_BYTES:,} bytes"
_log = structlog.get_logger(__name__)


class BoundedHeads(h11.Connection):
    """h11's connection, which bounds heads that are not complete yet; here one that came in one piece is bounded, too.

    Its `next_event` raises `RemoteProtocolError` for a longer one (431), for versions of HTTP other than 1.x (505; h11
    takes every pair of digits for one), and for a chunk that is announced larger than any body may be (413).
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        before = len(self.trailing_data[0]) if self.their_state is h11.IDLE else 0
        event = super().next_event()
        if isinstance(event, h11.Request):
            if before - len(self.trailing_data[0]) > MAX_HEAD_BYTES:
                raise h11.RemoteProtocolError("the head is too long", error_status_hint=_TOO_LONG)
            if not event.http_version.startswith(b"1."):
                why = f"HTTP/{event.http_version.decode()} is not known here: send HTTP/1.1"
                raise h11.RemoteProtocolError(why, error_status_hint=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if getattr(self._reader, "_bytes_in_chunk", 0) > MAX_BATCH_BODY_BYTES:  # said before any of it comes
            too_large = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            raise h11.RemoteProtocolError("the chunk is too large", error_status_hint=too_large)
        return event


def bounded_protocol() -> type[BoundedProtocol]:
    """The protocol of one server, whose connections are bounded together."""
    return type(
        "ServerProtocol", (BoundedProtocol,), {"idle": {}, "unfinished": {}, "unfinished_bytes": 0, "warned_at": None}
    )


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines, and with a bound for all connections of the server."""

    idle: ClassVar[dict[BoundedProtocol, None]]
    """Connections without a request in progress, the one that has waited longest first."""
    unfinished: ClassVar[dict[BoundedProtocol, int]]
    """Bytes of bodies that are not complete, the one that was begun first in front."""
    unfinished_bytes: ClassVar[int]
    """Of all of them."""
    warned_at: ClassVar[float | None]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = BoundedHeads()
        self._phase: str | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._stop_deadline: asyncio.TimerHandle | None = None
        self._begun = self._newest_piece = 0.0
        """Of the body, by the loop's clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._has_room():
            self._enter_phase()
        else:
            transport.write(_BUSY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._enter_phase()
        if self._phase == "body" and not self.transport.is_closing():
            self._newest_piece = self.loop.time()
            self._hold(len(data))

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP by a problem document; uvicorn's is plain text. Called while the error is handled."""
        error = sys.exc_info()[1]
        status = HTTPStatus(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            self._give_up(status, _TOO_LARGE)
        else:
            detail = _HEAD_TOO_LONG if status == _TOO_LONG else str(error or msg)
            self._give_up(status, _answer(status, "invalid-http", "The request is not valid HTTP", detail))

    def shutdown(self) -> None:
        """The service is being stopped: an idle connection is closed, a request in progress has some time left."""
        if self.transport.is_closing():
            return
        super().shutdown()
        grace = self.config.timeout_graceful_shutdown
        if grace is not None and not self.transport.is_closing():
            self._stop_deadline = self.loop.call_later(max(grace - _STOP_SECONDS, 0.0), self._stop)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: the service has no WebSockets on purpose, and a client's wish for one is no news."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._phase = None  # the next head has a time of its own
        self._enter_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _enter_phase(self) -> None:
        phase = self._present_phase()
        if phase == self._phase:
            return
        self._phase = phase
        self.idle.pop(self, None)
        self._let_go()
        if phase == "head":
            self.idle[self] = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase == "body":
            self._begun = self._newest_piece = self.loop.time()
            self._deadline = self.loop.call_at(self._body_due(), self._look_at_body)
        elif phase is not None:
            self._deadline = self.loop.call_later(_SECONDS[phase], self._too_late)

    def _present_phase(self) -> str | None:
        if self.transport.is_closing():
            return None
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.conn.their_state is h11.SEND_BODY else None

    def _too_late(self) -> None:
        if self.cycle is None:
            self.transport.write(_TOO_LATE)
        self.transport.close()

    def _look_at_body(self) -> None:
        """It is given up, or has moved its deadline meanwhile."""
        now = self.loop.time()
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:  # it is the service that waits
            self._newest_piece = now
        due = self._body_due()
        if now < due:
            self._deadline = self.loop.call_at(due, self._look_at_body)
        else:
            self._give_up(HTTPStatus.REQUEST_TIMEOUT, _BODY_TOO_LATE)

    def _body_due(self) -> float:
        came = min(self.unfinished.get(self, 0), MAX_BATCH_BODY_BYTES)
        whole = self._begun + _SECONDS["body"] + came / BODY_BYTES_PER_SECOND
        return min(self._newest_piece + _SECONDS["pause"], whole)

    def _stop(self) -> None:
        if self.conn.our_state is h11.SEND_RESPONSE and not self.flow.write_paused:
            self._give_up(HTTPStatus.SERVICE_UNAVAILABLE, _STOPPED)
        else:  # a part of an answer is under way, which nobody may take for the whole
            self.transport.abort()

    def _give_up(self, status: HTTPStatus, answer: bytes) -> None:
        """Answer a request in the API's place, unless its answer is on its way, and close the connection."""
        answers = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        if answers:
            self.transport.write(answer)
        self.conn.send_failed()
        if self.cycle is not None:  # whoever reads its body is told that no more comes
            if answers:
                self.cycle.scope.setdefault("state", {})["answered"] = int(status)  # for the log and the metrics
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _hold(self, n_bytes: int) -> None:
        """Count bytes of a body; the slowest of all bodies may have to make room for them."""
        server = type(self)
        self.unfinished[self] = self.unfinished.get(self, 0) + n_bytes
        server.unfinished_bytes += n_bytes
        while server.unfinished_bytes > MAX_UNFINISHED_BYTES:
            slowest = next(iter(self.unfinished))
            slowest._let_go()
            slowest.transport.abort()

    def _let_go(self) -> None:
        """Its body is complete, or given up."""
        type(self).unfinished_bytes -= self.unfinished.pop(self, 0)

    def _clear(self) -> None:
        self.idle.pop(self, None)
        self._let_go()
        for timer in (self._deadline, self._write_deadline, self._stop_deadline):
            if timer is not None:
                timer.cancel()
        self._deadline = self._write_deadline = self._stop_deadline = None

    def _has_room(self) -> bool:
        """Whether this connection may stay; the one that is idle longest may have to leave for it."""
        most = connections_now()
        if len(self.connections) <= most:
            return True
        self._warn(most)
        longest = next(iter(self.idle), None)
        if longest is None:
            return False
        del self.idle[longest]
        longest.transport.abort()
        return True

    def _warn(self, most: int) -> None:
        now, server = self.loop.time(), type(self)
        if server.warned_at is None or now - server.warned_at >= _WARN_SECONDS:
            server.warned_at = now
            _log.warning("all connections are in use: those that are idle longest are closed", most=most)
