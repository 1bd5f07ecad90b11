"""The OpenAPI document: FastAPI's, completed with what holds for all endpoints.

It says what this service does, from the same rules by which it decides: `auth` knows which call needs which token,
`body` which strings no request may hold. `make fuzz` compares the document with a running service.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from optimus_contract import answers
from optimus_service.api.access.auth import is_job_path, is_open_path
from optimus_service.api.http.body import STORABLE_TEXT
from optimus_service.api.http.problems import documented
from optimus_service.requests import adapter
from optimus_service.settings import Settings

_SECURITY_SCHEMES = {
    "user": {"type": "http", "scheme": "bearer", "description": "OPTIMUS_TOKEN; not needed while none is set"},
    "job": {"type": "http", "scheme": "bearer", "description": "the job's own token, which its tasks are given"},
}
_DESCRIPTION = """\
A scheduler for deep-learning clusters that learns each job while it runs.

Every error is a problem document (RFC 9457, `application/problem+json`) whose `errors` name the fields at fault.
"""


_INTEGER_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_REFERENCE = "#/components/schemas/"
_ANY_JSON = "AnyJson"
_STORABLE_JSON = {
    "description": "any JSON value, without the character NUL in its strings",
    "anyOf": [
        {"type": ["number", "boolean", "null"]},
        {"type": "string", "pattern": STORABLE_TEXT},
        {"type": "array", "items": {"$ref": _REFERENCE + _ANY_JSON}},
        {
            "type": "object",
            "propertyNames": {"pattern": STORABLE_TEXT},
            "additionalProperties": {"$ref": _REFERENCE + _ANY_JSON},
        },
    ],
}
"""What `body.parse_json` lets through."""
_EVERY_ANSWER = {
    "X-Request-ID": {"description": "also in the service's log", "schema": {"type": "string"}},
}
_SECONDS = {"description": "seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
_HEADERS = {
    401: {"WWW-Authenticate": {"description": "the kind of token", "schema": {"type": "string"}}},
    429: {"Retry-After": _SECONDS},
    503: {"Retry-After": _SECONDS},
}

Json = dict[str, Any]


def openapi_document(app: FastAPI, settings: Settings) -> Json:
    """The document of a service with these settings, made once per app."""
    if app.openapi_schema is None:
        found = get_openapi(title="Optimus", version=app.version, description=_DESCRIPTION, routes=app.routes)
        app.openapi_schema = _complete(found, users_need_a_token=settings.token is not None)
    return app.openapi_schema


def _complete(document: Json, *, users_need_a_token: bool) -> Json:
    components = document["components"]
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error bodies, which are never sent
        components["schemas"].pop(name, None)
    problem = adapter(answers.Problem).json_schema(ref_template=_REFERENCE + "{model}")
    components["schemas"].update(problem.pop("$defs"))
    components["schemas"] |= {"Problem": problem, _ANY_JSON: deepcopy(_STORABLE_JSON)}
    components["securitySchemes"] = _SECURITY_SCHEMES
    for path, operation in _operations(document):
        _add_what_holds_for_all(path, operation, users_need_a_token=users_need_a_token)
    for schema in _schemas(document):
        _say_bounds_as_integers(schema)
    for schema in _schemas_of_bodies(document):
        _say_what_text_may_hold(schema)
    return document


def _operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _add_what_holds_for_all(path: str, operation: Json, *, users_need_a_token: bool) -> None:
    statuses = {422, 500, 503}
    if "requestBody" in operation:
        statuses |= {400, 413, 415}
    if not is_open_path(path):
        statuses |= {403}
    if "{" in path:
        statuses |= {404}  # no name has a control character, so that nothing is at such a path
    if is_job_path(path):
        statuses |= {401}
        operation["security"] = [{"job": []}]
    elif users_need_a_token and not is_open_path(path):
        statuses |= {401, 429}
        operation["security"] = [{"user": []}]
    responses = operation["responses"]
    responses.update({str(status): answer for status, answer in documented(*sorted(statuses)).items()})
    for status, answer in responses.items():
        answer["headers"] = {**answer.get("headers", {}), **_EVERY_ANSWER, **_HEADERS.get(int(status), {})}


# --- what schemas say ------------------------------------------------------------------------------------------------


def _schemas(value: Any) -> Iterator[Json]:
    """Every object of the document; those that are no schemas have none of the words that are looked for."""
    if isinstance(value, dict):
        yield value
        for name, part in value.items():
            if name not in ("example", "examples", "default", "const", "enum"):
                yield from _schemas(part)
    elif isinstance(value, list):
        for part in value:
            yield from _schemas(part)


def _say_bounds_as_integers(schema: Json) -> None:
    """FastAPI writes bounds as floating-point numbers: 2^60 becomes 1.152921504606847e+18, which is another number."""
    if schema.get("type") == "integer":
        schema.update({name: int(schema[name]) for name in _INTEGER_BOUNDS if name in schema})


def _schemas_of_bodies(document: Json) -> Iterator[Json]:
    """The schemas of what is sent, with all that they refer to."""
    seen: set[str] = set()
    waiting: list[Any] = [operation.get("requestBody", {}) for _, operation in _operations(document)]
    while waiting:
        for schema in _schemas(waiting.pop()):
            reference = str(schema.get("$ref", "")).removeprefix(_REFERENCE)
            if reference and reference not in seen:
                seen.add(reference)
                waiting.append(document["components"]["schemas"][reference])
            yield schema


def _say_what_text_may_hold(schema: Json) -> None:
    if schema.get("type") == "string" and not {"pattern", "enum", "const", "format"} & set(schema):
        schema["pattern"] = STORABLE_TEXT
    if "patternProperties" in schema:  # pydantic's words for keys with a pattern, which leave other keys open
        ((pattern, schema["additionalProperties"]),) = schema.pop("patternProperties").items()
        schema["propertyNames"] = {"pattern": pattern, **schema.get("propertyNames", {})}
    if schema.get("additionalProperties") is True:
        schema["additionalProperties"] = {"$ref": _REFERENCE + _ANY_JSON}
    if isinstance(schema.get("additionalProperties"), dict):
        schema["propertyNames"] = {"pattern": STORABLE_TEXT, **schema.get("propertyNames", {})}
