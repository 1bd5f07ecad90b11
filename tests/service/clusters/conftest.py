"""Clusters to test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.clusters.cluster_harness import FakeHarness, Harness, LocalHarness


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture(params=["fake", "local"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    found: Harness = FakeHarness() if request.param == "fake" else LocalHarness(tmp_path)
    yield found
    found.close()
