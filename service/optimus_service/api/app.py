"""Puts the API together: endpoints, checks around them, and the life of the long polls."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from functools import cache

from fastapi import FastAPI, Request
from starlette.datastructures import State
from starlette.responses import JSONResponse

from optimus_service.api import health
from optimus_service.api.access.auth import AccessMiddleware
from optimus_service.api.cluster import cluster, plan_quota, projects, stream, trace, usage
from optimus_service.api.http import problems, web
from optimus_service.api.http.access_log import ObserveMiddleware
from optimus_service.api.jobs import batches, changes, details, explanation, jobs, plan, plan_change, queue
from optimus_service.api.openapi import openapi_document
from optimus_service.api.reports import from_tasks, mlflow, track
from optimus_service.api.reports.watching import Watching
from optimus_service.api.services import Services
from optimus_service.api.task_checks import TaskChecks
from optimus_service.api.users import people, sign_in
from optimus_service.insight.predictions.predictions import HistoryCache
from optimus_service.metrics.read import metrics_reader
from optimus_service.sso.provider import Provider
from optimus_service.store.samples.sample_queue import SampleQueue

_PARTS = (
    from_tasks,  # in front, as a path is looked for in one part after the other, and telemetry is most of what comes
    jobs,
    batches,
    changes,
    plan,
    plan_change,
    details,
    explanation,
    track,
    mlflow,
    cluster,
    projects,
    plan_quota,
    queue,
    usage,
    people,
    sign_in,
    trace,
    stream,
    health,
)
_ROUTERS = (*(module.router for module in _PARTS), sign_in.browser)


@cache
def _endpoints() -> FastAPI:
    """The application without a service. It knows none and is made once in a process."""
    app = FastAPI(
        title="Optimus",
        lifespan=_lifespan,
        docs_url=None,  # ours is one of the files of `web`
        redoc_url=None,
        openapi_url=None,  # FastAPI's own endpoint would answer for this application, not for the copy that is asked
        redirect_slashes=False,
    )
    app.add_route("/openapi.json", _openapi, include_in_schema=False)
    # As they are: `include_router` would make each endpoint's checks once more, for a prefix that there is none of.
    app.router.routes.extend(route for router in (*_ROUTERS, web.make_router()) for route in router.routes)
    problems.install(app, app.router.routes)
    return app


async def _openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


def create_app(services: Services) -> FastAPI:
    """The API as an ASGI application. All of a process share the endpoints.

    Its lifespan runs the long polls. A server that shuts down has to call `services.long_polls.close()` first: it waits
    for open requests before the lifespan ends, and long polls end only when they are closed.
    """
    endpoints = _endpoints()
    app = copy.copy(endpoints)
    app.version = services.version
    app.state, app.user_middleware, app.middleware_stack = State(), [], None
    app.state.api_routes = endpoints.state.api_routes
    app.state.services = services
    app.state.task_checks = TaskChecks(services.cluster.check_task, services.cluster.try_task)
    app.state.histories = HistoryCache(services.repository, services.finished_runs, services.settings.scheduling)
    app.state.sample_queue = SampleQueue(services.repository.samples.add)
    app.state.watching = Watching(services, app.state.task_checks, app.state.sample_queue)
    app.state.database_check = health.DatabaseCheck(services.repository)
    oidc = services.settings.oidc
    app.state.provider = None if oidc is None else Provider(oidc, services.clock)
    app.state.feeds = stream.Feeds(services)
    _publish_metrics(services)
    # The middleware added last is the outermost: refused requests are logged and measured as well.
    app.add_middleware(
        AccessMiddleware,
        settings=services.settings,
        job_tokens=services.job_tokens,
        repository=services.repository,
        clock=services.clock,
    )
    app.add_middleware(ObserveMiddleware, metrics=services.metrics)
    app.openapi = lambda: openapi_document(app, services.settings)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


def _publish_metrics(services: Services) -> None:
    metrics = services.metrics
    constants = services.settings.scheduling
    read = services.repository, services.clock, services.leads, lambda: metrics.nodes, constants, services.still_now
    metrics.show_state(metrics_reader(*read))
    metrics.show_service(
        version=services.version,
        policy=services.settings.policy,
        long_polls=lambda: services.long_polls.n_waiters,
        loop_health=services.loop_health,
    )


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    running = asyncio.create_task(services.long_polls.run())
    try:
        yield
    finally:
        services.long_polls.close()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        if app.state.provider is not None:
            await app.state.provider.close()
