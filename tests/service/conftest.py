"""Databases for the tests of the service: every test that asks for one runs on SQLite and on PostgreSQL.

Each test finds a database that was migrated by Alembic and has no rows. Where PostgreSQL is not installed its variants
are skipped; with OPTIMUS_TEST_REQUIRE_POSTGRES=1 (as in CI) they fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.postgres_cluster import PostgresCluster, PostgresMissing

from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.repository import Repository

BACKENDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """One server for all tests of this run."""
    yield from _running()


@pytest.fixture
def own_postgres() -> Iterator[PostgresCluster]:
    """A server that a test may freeze; the other is shared."""
    yield from _running()


def _running() -> Iterator[PostgresCluster]:
    try:
        cluster = PostgresCluster()
    except PostgresMissing as missing:
        if os.environ.get("OPTIMUS_TEST_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"OPTIMUS_TEST_REQUIRE_POSTGRES=1, but {missing}")
        pytest.skip(str(missing))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def migrated_postgres(postgres_cluster: PostgresCluster) -> str:
    """The name of the migrated database that the tests use one after the other."""
    name = postgres_cluster.create_database()
    upgrade(postgres_cluster.url(name))
    return name


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The migrated file that each test gets a copy of."""
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated database without rows."""
    if request.param == "sqlite":
        path = tmp_path / "optimus.db"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
        yield f"sqlite:///{path}"
        return
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    name = request.getfixturevalue("migrated_postgres")
    cluster.empty_database(name)
    yield cluster.url(name)


@pytest.fixture(params=BACKENDS)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables: for the tests of the migrations themselves."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    name = cluster.create_database()
    yield cluster.url(name)
    cluster.drop_database(name)


@pytest.fixture
def repository(database_url: str) -> Iterator[Repository]:
    """The repository of a migrated database without rows."""
    repository = Repository(create_engine_from_url(database_url))
    yield repository
    repository.close()
