"""Fixtures for the tests of what people and machines see: those of the API, and a world that trains by formula."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.service.api.api_harness import Api
from tests.service.api.conftest import api, serve, serving, surroundings
from tests.service.loop.loop_world import World
from tests.service.seeing.browser import browser
from tests.service.seeing.crowded import crowded_service
from tests.service.seeing.live import LiveService, live_service
from tests.service.seeing.previews import preview_of

from optimus_service.store.repository import Repository

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["api", "serving", "surroundings", "world"]


@pytest.fixture
def world(repository: Repository, tmp_path: Path) -> World:
    """A service with nothing to do yet, on SQLite and on PostgreSQL."""
    return World(repository, tmp_path)


@pytest.fixture
def planning(world: World, surroundings: Any, database_url: str) -> Iterator[Api]:
    """The API of that world, with what says what would happen."""
    settings = world.settings.model_copy(update={"database_url": database_url})
    surroundings.cluster, surroundings.clock = world.cluster, world.clock
    with serve(world.repository, settings, surroundings) as running:
        object.__setattr__(running.services, "preview", preview_of(world))
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def live(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with live_service(tmp_path_factory.mktemp("live"), history_seconds=320) as service:
        yield service


@pytest.fixture(scope="module")
def crowded(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with crowded_service(tmp_path_factory.mktemp("crowded")) as service:
        yield service
