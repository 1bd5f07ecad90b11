"""For machines that watch the service: is it alive, can it work, what are its figures."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from typing import Annotated, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from optimus_contract import answers
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import unavailable
from optimus_service.api.services import Services, ServicesDep
from optimus_service.store.database.engine import head_revision
from optimus_service.store.errors import DatabaseNotAvailable, StoreError
from optimus_service.store.repository import Repository

router = APIRouter(route_class=StrictRoute, tags=["health"])

_ANSWER_SECONDS = 3.0
"""How long `/readyz` waits for the database: load balancers and kubelets wait for some seconds themselves."""
_Fault = tuple[str, str]
"""What is wrong in words for the answer, and in those of the database for the log."""


class DatabaseCheck:
    """Asks the database whether it is there, one question at a time, whoever wants to know.

    It has a thread of its own: while the database is frozen, calls that wait for it hold all those of the API.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._asking: asyncio.Task[_Fault | None] | None = None

    async def fault(self) -> _Fault | None:
        """What is wrong, None when nothing is; after `_ANSWER_SECONDS` at the latest.

        The database is asked on a connection of the pool. One that has none to give, because all of them work, is no
        error.
        """
        asked_at = time.monotonic()
        if self._asking is None or self._asking.done():
            asked = to_thread.run_sync(self._ask, limiter=CapacityLimiter(1), abandon_on_cancel=True)
            self._asking = asyncio.ensure_future(asked)
        asking = self._asking
        await asyncio.wait([asking], timeout=_ANSWER_SECONDS)
        if asking.done():
            return asking.result()
        if self._repository.answered_since(asked_at):
            return None
        return "does not answer", f"no answer for {_ANSWER_SECONDS:.0f} s"

    def _ask(self) -> _Fault | None:
        asked_at = time.monotonic()
        try:
            found, needed = self._repository.revision(), _needed_revision()
        except StoreError as error:
            if self._repository.answered_since(asked_at):
                return None
            return error.for_users if isinstance(error, DatabaseNotAvailable) else "cannot be used", str(error)
        if found == needed:
            return None
        wrong = f"has the schema {found or 'of an empty database'}, {needed} is needed: run `optimus db upgrade`"
        return wrong, wrong


async def _database_check_of(request: Request) -> DatabaseCheck:
    return cast(DatabaseCheck, request.app.state.database_check)


@router.get("/healthz")
async def is_alive(services: ServicesDep) -> answers.Health:
    """The process answers. If it does not, restart it."""
    return answers.Health(status="alive", version=services.version)


@router.get("/readyz")
async def is_ready(
    services: ServicesDep, database: Annotated[DatabaseCheck, Depends(_database_check_of)]
) -> answers.Health:
    """The service can work: the database answers and has the right schema, the scheduling loop is alive. 503 if not."""
    found = {"database": await database.fault(), "loop": _loop_error(services)}
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


@cache
def _needed_revision() -> str:
    """Reading the migrations takes a while, and they do not change while the service runs."""
    return head_revision()


def _loop_error(services: Services) -> _Fault | None:
    wrong = services.loop_health()
    return None if wrong is None else (wrong, wrong)
