"""Fixtures for the tests of the scheduling loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.loop.loop_world import World

from optimus_service.store.repository import Repository


@pytest.fixture
def world(repository: Repository, tmp_path: Path) -> World:
    """A service with nothing to do yet, on SQLite and on PostgreSQL."""
    return World(repository, tmp_path)
