"""The service's calls without a network: what is sent, how the answer is read, and what went wrong."""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from .answers import Explanation, Job, Log, Plan, Predictions, Table

PAGE_SIZE = 100

T = TypeVar("T")


class OptimusError(Exception):
    """Base of all that can go wrong."""


class Unreachable(OptimusError):
    """Nothing that speaks the API answers at the address. `reason`: what the network said, where it was that."""

    def __init__(self, message: str, reason: BaseException | None = None) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def is_timeout(self) -> bool:
        """Something listens, and did not answer in time."""
        return isinstance(self.reason, TimeoutError)

    @property
    def was_never_sent(self) -> bool:
        """There was no connection, so that the call has done nothing."""
        return isinstance(self.reason, (ConnectionRefusedError, socket.gaierror))


class ApiError(OptimusError):
    """The service refused. `problem` is the body of its answer (RFC 9457), `status` the one of HTTP."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = problem
        detail = problem.get("detail") or problem.get("title") or f"the service answered with status {status}"
        found = [each for each in problem.get("errors") or [] if isinstance(each, dict)]
        self.errors: dict[str, str] = {str(each.get("field")): str(each.get("message")) for each in found}
        """What is wrong with single fields, such as `workers.max`."""
        super().__init__("\n".join([str(detail), *(f"  {name}: {text}" for name, text in self.errors.items())]))


class Unauthorized(ApiError):
    """The token is missing or wrong."""


class NotFound(ApiError):
    """There is no such job."""


class Conflict(ApiError):
    """The job's state does not allow this."""


class Invalid(ApiError):
    """What was sent is wrong; see `errors`."""


_KINDS: dict[int, type[ApiError]] = {400: Invalid, 401: Unauthorized, 404: NotFound, 409: Conflict, 422: Invalid}


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def submit(spec: Mapping[str, Any], idempotency_key: str | None) -> Call[Job]:
    key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    return Call("POST", "/v1/jobs", Job.of, json.dumps(spec).encode(), key)


def plan(spec: Mapping[str, Any]) -> Call[Plan]:
    return Call("POST", "/v1/plan", Plan.of, json.dumps(spec).encode())


def page(filters: Mapping[str, Any], limit: int | None, cursor: str | None) -> Call[tuple[list[Job], str | None]]:
    given = {**filters, "limit": PAGE_SIZE if limit is None else min(limit, PAGE_SIZE), "cursor": cursor}
    query = urlencode({name: value for name, value in given.items() if value is not None}, doseq=True)
    return Call(
        "GET", f"/v1/jobs?{query}", lambda found: ([Job.of(each) for each in found["jobs"]], found["next_cursor"])
    )


def find(reference: str) -> Call[Job | None]:
    query = urlencode({"name": reference, "match": "one", "limit": 1})
    return Call("GET", f"/v1/jobs?{query}", lambda found: next((Job.of(each) for each in found["jobs"]), None))


def get(job_id: str) -> Call[Job]:
    return Call("GET", _path(job_id), Job.of)


def cancel(job_id: str) -> Call[Job]:
    return Call("POST", _path(job_id, "cancel"), Job.of)


def pause(job_id: str) -> Call[Job]:
    return Call("POST", _path(job_id, "pause"), Job.of)


def resume(job_id: str) -> Call[Job]:
    return Call("POST", _path(job_id, "resume"), Job.of)


def retry(job_id: str, idempotency_key: str | None) -> Call[Job]:
    return Call(
        "POST", _path(job_id, "retry"), Job.of, headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    )


def change(job_id: str, changes: Mapping[str, Any]) -> Call[Job]:
    return Call("PATCH", _path(job_id), Job.of, json.dumps(changes).encode())


def delete(job_id: str, checkpoints: bool) -> Call[None]:
    return Call("DELETE", _path(job_id) + ("?checkpoints=true" if checkpoints else ""), lambda _: None)


def explain(job_id: str) -> Call[Explanation]:
    return Call("GET", _path(job_id, "explanation"), Explanation.of)


def predict(job_id: str, choice: Mapping[str, Any]) -> Call[Predictions]:
    query = urlencode({name: value for name, value in choice.items() if value is not None})
    return Call("GET", f"{_path(job_id, 'predictions')}?{query}", Predictions.of)


def logs(job_id: str, task: str | None) -> Call[Table[Log]]:
    query = "" if task is None else "?" + urlencode({"task": task})
    return Call("GET", _path(job_id, "logs") + query, lambda found: Table(Log.of(each) for each in found["logs"]))


def issue_token(job_id: str) -> Call[str]:
    return Call("POST", _path(job_id, "token"), lambda found: str(found["token"]))


def report_as_job(job_id: str, token: str, method: str, path: str, body: Mapping[str, Any]) -> Call[None]:
    headers = {"Authorization": f"Bearer {token}"}
    return Call(method, _path(job_id, path), lambda _: None, json.dumps(body).encode(), headers)


def any_call(method: str, path: str, query: Mapping[str, Any], body: Any, headers: Mapping[str, str]) -> Call[Any]:
    found = f"{path}?{urlencode(query, doseq=True)}" if query else path
    content = None if body is None else json.dumps(body).encode()
    return Call(method, found, lambda document: document, content, headers)


def _path(job_id: str, *rest: str) -> str:
    return "/".join(["/v1/jobs", quote(job_id, safe=""), *rest])


def answer(call: Call[T], status: int, content: bytes) -> T:
    """What a call returns. Raises `ApiError`, or `Unreachable` if something else than the service answered."""
    document, is_json = None, True
    try:
        document = json.loads(content) if content else None
    except ValueError:
        is_json = False
    if not 200 <= status < 300:
        problem = document if isinstance(document, dict) else {}
        raise _KINDS.get(status, ApiError)(status, problem)
    if not is_json:
        raise Unreachable(f"what answers is not an Optimus service: {call.path} is not JSON")
    try:
        return call.read(document)
    except (TypeError, KeyError, AttributeError) as error:
        raise Unreachable(f"what answers is not an Optimus service: {call.path} has another form") from error


def checked_url(url: str) -> str:
    """Without the slash at its end. Raises `ValueError`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        hint = f"; did you mean http://{url}?" if re.fullmatch(r"[\w.-]+(:\d+)?/?", url) else ""
        raise ValueError(f"{url!r} is not an address like http://127.0.0.1:8080{hint}")
    return url.rstrip("/")


class Lines:
    """Server-sent events, line by line."""

    def __init__(self) -> None:
        self._event, self._data = "", ""

    def feed(self, line: str) -> tuple[str, Any] | None:
        """The event that this line ends: its name, and its data."""
        if line.startswith("event:"):
            self._event = line[6:].strip()
        elif line.startswith("data:"):
            self._data += line[5:].strip()
        elif not line:
            found, self._event, self._data = (self._event, self._data), "", ""
            if found[0] and found[1]:
                return found[0], json.loads(found[1])
        return None
