"""Reads request bodies with care, and refuses what an endpoint does not know.

A body is read only as far as the limit, must be JSON in UTF-8, and its strings must be such that every database can
hold them. All of this happens before an endpoint, and before pydantic, sees anything.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from optimus_contract import answers
from optimus_contract.limits import MAX_BATCH_BODY_BYTES, MAX_BODY_BYTES
from optimus_contract.message import Message
from optimus_contract.readings.otlp import unzipped
from optimus_service.api.http.problems import Problem, invalid
from optimus_service.api.http.validation import MAX_ERRORS, Location, dotted, field_errors

_SUSPECT_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""Without one of these escapes no string can hold a NUL or half of a surrogate pair."""
STORABLE_TEXT = r"^[^\x00]*$"
"""What `_why_unstorable` lets through, as a regular expression; JSON in UTF-8 cannot say half of a surrogate pair."""

_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";,\s]*)', re.IGNORECASE)
_UTF8 = ("utf-8", "utf8", "us-ascii", "")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
"""As JSON has it, with zeros in front allowed. Python also reads `1_0`, `+5`, ` 5` and the digits of all scripts."""

_WITHOUT_BODY = ("GET", "HEAD")
"""Methods whose body HTTP gives no meaning."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BoundedRequest(Request):
    """A request that never holds more than `most_bytes` of body, and parses it strictly."""

    most_bytes = MAX_BODY_BYTES

    async def body(self) -> bytes:
        """The body.

        Raises:
            Problem: it is larger than allowed (413), or no more of it comes (400; nobody hears it).
        """
        if not hasattr(self, "_body"):
            self._body = await self._read()
        return self._body

    async def json(self) -> Any:
        """The parsed body.

        Raises:
            Problem: it is not JSON (400), or has strings that cannot be stored (422).
        """
        return parse_json(await self.body())

    async def _read(self) -> bytes:
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > self.most_bytes:
            raise _too_large(self.most_bytes)
        chunks, size = [], 0
        try:
            async for chunk in self.stream():
                size += len(chunk)
                if size > self.most_bytes:
                    raise _too_large(self.most_bytes)
                chunks.append(chunk)
        except ClientDisconnect as error:
            raise Problem(400, "the body is not complete, and no more of it comes") from error
        return b"".join(chunks)


class StrictRoute(APIRoute):
    """A route that refuses unknown or repeated query parameters, bodies that are not JSON and, where a call takes no
    fields, all fields; and words errors."""

    most_bytes = MAX_BODY_BYTES
    """Of a body."""

    def get_route_handler(self) -> Handler:
        """FastAPI's handler with the checks in front."""
        handle = super().get_route_handler()
        known_queries = dict(_queries(self.dependant))
        body_model, most_bytes = _body_model(self.endpoint), self.most_bytes

        async def strict(request: Request) -> Response:
            _check_queries(request, known_queries)
            bounded = BoundedRequest(request.scope, request.receive)
            bounded.most_bytes = most_bytes
            if body_model is not None:
                _refuse_other_media(request)
            elif request.method not in _WITHOUT_BODY:
                _refuse_fields(request, await bounded.body())
            try:
                return await handle(bounded)
            except RequestValidationError as error:
                raise invalid(field_errors(error.errors(), body_model)) from error

        return strict


class BatchRoute(StrictRoute):
    """The same for a body that is about many jobs."""

    most_bytes = MAX_BATCH_BODY_BYTES


class ForeignRoute(APIRoute):
    """A route of another project's protocol, whose endpoint reads the body: bounded, and packed or not.

    Unknown query parameters are refused where the call has any of ours; the other's protocol may have some more.
    """

    def get_route_handler(self) -> Handler:
        """FastAPI's handler with the checks in front."""
        handle = super().get_route_handler()
        known_queries = dict(_queries(self.dependant))

        async def foreign(request: Request) -> Response:
            if known_queries:
                _check_queries(request, known_queries)
            try:
                return await handle(BoundedRequest(request.scope, request.receive))
            except RequestValidationError as error:
                raise invalid(field_errors(error.errors())) from error

        return foreign


@dataclass(frozen=True, slots=True)
class ForeignBody:
    """What came to a `ForeignRoute`."""

    media_type: str
    content: bytes

    def json(self) -> dict[str, Any]:
        """The JSON object that it is. Raises `Problem` (400, 415, 422)."""
        if self.media_type != "application/json":
            raise Problem(415, f"send Content-Type: application/json, not {self.media_type[:100] or 'nothing'}")
        found = parse_json(self.content)
        if not isinstance(found, dict):
            raise invalid([answers.ProblemError(field="body", message="must be an object")])
        return found


async def foreign_body(request: Request) -> ForeignBody:
    """The body, unpacked. Raises `Problem` (400, 413, 415)."""
    content, encoding = await request.body(), request.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "gzip"):
        raise Problem(415, "send the body as it is, or packed with gzip (Content-Encoding)")
    if encoding == "gzip":
        try:
            content = unzipped(content, MAX_BODY_BYTES)
        except ValueError as error:
            raise Problem(400, f"the body cannot be unpacked: {error}") from error
    return ForeignBody(request.headers.get("content-type", "").partition(";")[0].strip().lower(), content)


ForeignBodyDep = Annotated[ForeignBody, Depends(foreign_body)]


def parse_json(data: bytes) -> Any:
    """What `data` says. NaN and Infinity are let through: the model knows where they are legal.

    Raises:
        Problem: not UTF-8, not JSON, nested too deeply or with numbers too long (400); a field that is given twice,
            unstorable strings (422).
    """
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _not_json(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise _not_json("it is nested too deeply") from error
    except ValueError as error:  # the limit on digits that Python puts on integers
        raise _not_json("it has a number with too many digits") from error
    if _SUSPECT_ESCAPE.search(data):
        errors = [error for error, _ in zip(_unstorable_strings(value), range(MAX_ERRORS), strict=False)]
        if errors:
            raise invalid(errors)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose fields are all different: of two values nobody knows which one is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, n_times in Counter(name for name, _ in pairs).items() if n_times > 1)
        raise invalid([answers.ProblemError(field=dotted([repeated]), message="is given twice in one object")])
    return found


def _unstorable_strings(document: Any) -> Iterator[answers.ProblemError]:
    """Strings that UTF-8 or PostgreSQL cannot hold."""
    for path, text in _strings(document):
        if why := _why_unstorable(text):
            yield answers.ProblemError(field=dotted(path), message=why)


def _strings(document: Any) -> Iterator[tuple[Location, str]]:
    """All strings with their paths; the name of a field has the path of its object.

    Levels instead of recursion, and one path for all: a document may be deep and at the same time have very many
    values, and a path kept for each of them took gigabytes.
    """
    path: list[str | int] = []
    levels: list[Iterator[tuple[str | int, Any]]] = [iter([("", document)])]
    while levels:
        for name, value in levels[-1]:
            path[len(levels) - 1 :] = [name]
            if isinstance(value, str):
                yield path[1:], value
            elif isinstance(value, dict):
                yield from ((path[1:], field) for field in value)
                levels.append(iter(value.items()))
                break
            elif isinstance(value, list):
                levels.append(iter(enumerate(value)))
                break
        else:
            levels.pop()


def _why_unstorable(text: str) -> str | None:
    if "\0" in text:
        return "must not contain the character NUL (\\u0000)"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "must not contain half of a surrogate pair (\\ud800 to \\udfff)"
    return None


@dataclass(frozen=True, slots=True)
class _Query:
    """What is known of a query parameter."""

    may_repeat: bool
    is_number: bool


def _queries(dependant: Dependant) -> Iterator[tuple[str, _Query]]:
    """Query parameters by name."""
    for parameter in dependant.query_params:
        annotation = parameter.field_info.annotation
        parts = (annotation, *get_args(annotation))
        yield parameter.alias, _Query(list in {get_origin(part) for part in parts}, not {int, float}.isdisjoint(parts))
    for part in dependant.dependencies:
        yield from _queries(part)


def _body_model(endpoint: Callable[..., Any]) -> type[Message] | None:
    hints = get_type_hints(endpoint)
    hints.pop("return", None)
    return next((hint for hint in hints.values() if isinstance(hint, type) and issubclass(hint, Message)), None)


def _check_queries(request: Request, known: Mapping[str, _Query]) -> None:
    given = Counter(name for name, _ in request.query_params.multi_items())
    allowed = f"allowed here: {', '.join(sorted(known))}" if known else "none are allowed here"
    wrong = {name: f"unknown query parameter; {allowed}" for name in given if name not in known}
    wrong |= {
        name: "must be given once"
        for name, n_times in given.items()
        if n_times > 1 and name in known and not known[name].may_repeat
    }
    wrong |= {
        name: f"must be a number in digits, such as 20, not {value[:40]!r}"
        for name, value in request.query_params.multi_items()
        if name in known and known[name].is_number and _is_odd_number(value)
    }
    if wrong:
        errors = [answers.ProblemError(field=dotted([name]), message=message) for name, message in wrong.items()]
        raise invalid(errors[:MAX_ERRORS])


def _is_odd_number(text: str) -> bool:
    """Whether Python reads it as a number, although it is none in JSON."""
    try:
        return math.isfinite(float(text)) and _NUMBER.fullmatch(text) is None
    except ValueError:
        return False


def _refuse_fields(request: Request, body: bytes) -> None:
    """Raise `Problem` unless nothing was sent, or an empty object, to a call that takes no fields."""
    if not body:
        return
    _refuse_other_media(request)
    value = parse_json(body)
    if value == {}:
        return
    if not isinstance(value, dict):
        raise invalid(
            [answers.ProblemError(field="body", message="must be left out, or {}: this call takes no fields")]
        )
    why = "unknown field: this call takes none"
    raise invalid([answers.ProblemError(field=dotted([name]), message=why) for name in list(value)[:MAX_ERRORS]])


def _refuse_other_media(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, f"send Content-Type: application/json, not {media_type[:100] or 'nothing'}")
    charset = _CHARSET.search(request.headers.get("content-type", ""))
    if charset is not None and charset[1].lower() not in _UTF8:
        raise Problem(415, f"JSON is sent in UTF-8, not {charset[1][:100]}")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(415, "send the body without Content-Encoding")


def _too_large(most_bytes: int) -> Problem:
    limit = answers.ProblemError(field="body", message=f"may have at most {most_bytes} bytes")
    return Problem(413, f"the body may have at most {most_bytes} bytes", errors=[limit])


def _not_json(why: str) -> Problem:
    return Problem(
        400,
        f"the body is not JSON: {why}",
        kind="invalid-json",
        errors=[answers.ProblemError(field="body", message=why)],
    )
