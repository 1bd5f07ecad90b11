"""One database is enough here: what differs between them is tested elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimus_service.store.engine import create_engine_from_url
from optimus_service.store.repository import Repository


@pytest.fixture
def repository(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Repository]:
    path = tmp_path / "optimus.db"
    shutil.copy(migrated_sqlite, path)
    found = Repository(create_engine_from_url(f"sqlite:///{path}"))
    yield found
    found.close()
