"""For machines that watch the service: is it alive, can it work, what are its figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from optimus_service.api.body import StrictRoute
from optimus_service.api.problems import unavailable
from optimus_service.api.schemas import HealthBody, ProblemErrorBody
from optimus_service.api.services import Services, ServicesDep
from optimus_service.store.engine import current_revision, head_revision
from optimus_service.store.errors import StoreError

router = APIRouter(route_class=StrictRoute, tags=["health"])


@router.get("/healthz")
async def is_alive(services: ServicesDep) -> HealthBody:
    """The process answers. If it does not, restart it."""
    return HealthBody(status="alive", version=services.version)


@router.get("/readyz")
def is_ready(services: ServicesDep) -> HealthBody:
    """The service can work: the database answers and has the right schema, the scheduling loop is alive. 503 if not."""
    checks: dict[str, Callable[[Services], str | None]] = {"database": _database_error, "loop": _loop_error}
    errors = [
        ProblemErrorBody(field=name, message=message)
        for name, check in checks.items()
        if (message := check(services)) is not None
    ]
    if errors:
        raise unavailable("; ".join(f"{error.field}: {error.message}" for error in errors), errors)
    return HealthBody(status="ready", version=services.version)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def show_metrics(services: ServicesDep) -> Response:
    """Figures for Prometheus."""
    return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _database_error(services: Services) -> str | None:
    try:
        wrong_schema = _schema_error(services.settings.url)
        if wrong_schema is None:
            services.repository.ping()
    except StoreError:
        return "cannot be reached"
    return wrong_schema


@cache
def _needed_revision() -> str:
    """Reading the migrations takes a while, and they do not change while the service runs."""
    return head_revision()


def _schema_error(url: str) -> str | None:
    found, needed = current_revision(url), _needed_revision()
    if found == needed:
        return None
    return f"has the schema {found or 'of an empty database'}, {needed} is needed: run `optimus db upgrade`"


def _loop_error(services: Services) -> str | None:
    return services.loop_health()
