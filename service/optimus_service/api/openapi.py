"""The OpenAPI document: FastAPI's, completed with what holds for all endpoints (tokens, error answers)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from optimus_service.api.auth import is_job_path, is_open_path
from optimus_service.api.problems import documented
from optimus_service.api.schemas import ProblemBody

_SECURITY_SCHEMES = {
    "user": {"type": "http", "scheme": "bearer", "description": "OPTIMUS_TOKEN; not needed while none is set"},
    "job": {"type": "http", "scheme": "bearer", "description": "the job's own token, which its tasks are given"},
}
_DESCRIPTION = """\
A scheduler for deep-learning clusters that learns each job while it runs.

Every error is a problem document (RFC 9457, `application/problem+json`) whose `errors` name the fields at fault.
"""


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document, made once per app."""
    if app.openapi_schema is None:
        app.openapi_schema = _complete(
            get_openapi(title="Optimus", version=app.version, description=_DESCRIPTION, routes=app.routes)
        )
    return app.openapi_schema


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    components = document["components"]
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error bodies, which are never sent
        components["schemas"].pop(name, None)
    problem = ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
    components["schemas"].update(problem.pop("$defs"))
    components["schemas"]["ProblemBody"] = problem
    components["securitySchemes"] = _SECURITY_SCHEMES
    for path, operation in _operations(document):
        _add_what_holds_for_all(path, operation)
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _add_what_holds_for_all(path: str, operation: dict[str, Any]) -> None:
    statuses = [422, 500, 503]
    if "requestBody" in operation:
        statuses += [400, 413, 415]
    if not is_open_path(path):
        statuses += [401, 403]
        operation["security"] = [{"job" if is_job_path(path) else "user": []}]
    operation["responses"].update({str(status): answer for status, answer in documented(*sorted(statuses)).items()})
