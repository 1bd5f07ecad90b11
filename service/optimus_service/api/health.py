"""For machines that watch the service: is it alive, can it work, what are its figures."""

from __future__ import annotations

import time
from functools import cache

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from optimus_contract import answers
from optimus_service.api.body import StrictRoute
from optimus_service.api.problems import unavailable
from optimus_service.api.services import Services, ServicesDep
from optimus_service.store.engine import head_revision
from optimus_service.store.errors import StoreError

router = APIRouter(route_class=StrictRoute, tags=["health"])


@router.get("/healthz")
async def is_alive(services: ServicesDep) -> answers.Health:
    """The process answers. If it does not, restart it."""
    return answers.Health(status="alive", version=services.version)


@router.get("/readyz")
def is_ready(services: ServicesDep) -> answers.Health:
    """The service can work: the database answers and has the right schema, the scheduling loop is alive. 503 if not."""
    found = {"database": _database_error(services), "loop": _loop_error(services)}
    wrong = {name: words for name, words in found.items() if words is not None}
    if wrong:
        errors = [answers.ProblemError(field=name, message=message) for name, (message, _) in wrong.items()]
        detail = "; ".join(f"{name}: {message}" for name, (message, _) in wrong.items())
        raise unavailable(detail, errors, cause="; ".join(f"{name}: {cause}" for name, (_, cause) in wrong.items()))
    return answers.Health(status="ready", version=services.version)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def show_metrics(services: ServicesDep) -> Response:
    """Figures for Prometheus."""
    return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _database_error(services: Services) -> tuple[str, str] | None:
    """What is wrong in words for the answer, and in those of the database for the log; None when nothing is.

    The database is asked on a connection of the pool. One that has none to give, because all of them work, is no error.
    """
    asked_at = time.monotonic()
    try:
        found, needed = services.repository.revision(), _needed_revision()
    except StoreError as error:
        return None if services.repository.answered_since(asked_at) else ("cannot be reached", str(error))
    if found == needed:
        return None
    wrong = f"has the schema {found or 'of an empty database'}, {needed} is needed: run `optimus db upgrade`"
    return wrong, wrong


@cache
def _needed_revision() -> str:
    """Reading the migrations takes a while, and they do not change while the service runs."""
    return head_revision()


def _loop_error(services: Services) -> tuple[str, str] | None:
    wrong = services.loop_health()
    return None if wrong is None else (wrong, wrong)
