"""Fixtures for the tests of the API: the real app on a real database, with a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from tests.service.api.api_harness import Api, Surroundings

from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.closing import with_closed_nodes
from optimus_service.observe.finished_runs import FinishedRunHistory
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.settings import Settings
from optimus_service.store.repository import Repository

Serve = Callable[..., AbstractContextManager[Api]]


@contextmanager
def serve(
    repository: Repository, settings: Settings, surroundings: Surroundings, *, raises: bool = True
) -> Iterator[Api]:
    """The app with its lifespan. `raises`: an exception that escapes the app fails the test at once."""
    services = Services(
        settings=settings,
        repository=repository,
        cluster=with_closed_nodes(surroundings.cluster, repository.nodes.closed),
        long_polls=LongPolls(repository.wanted.generations, poll_seconds=0.01),
        job_tokens=JobTokens(b"a secret of the tests"),
        version="1.2.3",
        trigger_round=surroundings.triggers.append,
        trigger_round_for=lambda _, why: surroundings.triggers.append(why),
        loop_health=lambda: surroundings.loop_error,
        finished_runs=FinishedRunHistory(repository, settings.keep_seconds),
        clock=surroundings.clock,
    )
    app = create_app(services)
    transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
    client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(app.router.lifespan_context(app)):
            yield Api(portal, client, services, surroundings)
        portal.call(client.aclose)


@pytest.fixture
def surroundings() -> Surroundings:
    return Surroundings()


@pytest.fixture
def serving(
    repository: Repository, database_url: str, tmp_path: Path, surroundings: Surroundings
) -> Callable[..., AbstractContextManager[Api]]:
    """Serves the API with settings of the test's choice: `with serving(token="...") as api`."""

    def start(*, raises: bool = True, **settings: Any) -> AbstractContextManager[Api]:
        chosen = Settings(data_directory=tmp_path / "data", database_url=database_url, **settings)
        return serve(repository, chosen, surroundings, raises=raises)

    return start


@pytest.fixture
def api(serving: Serve) -> Iterator[Api]:
    """The API as it is by default: on loopback, without a user's token."""
    with serving() as api:
        yield api
