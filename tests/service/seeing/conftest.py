"""Fixtures for the tests of what people and machines see: those of the API, and a world that trains by formula."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.api.conftest import api, serving, surroundings
from tests.service.loop.loop_world import World

from optimus_service.store.repository import Repository

__all__ = ["api", "serving", "surroundings", "world"]


@pytest.fixture
def world(repository: Repository, tmp_path: Path) -> World:
    """A service with nothing to do yet, on SQLite and on PostgreSQL."""
    return World(repository, tmp_path)
