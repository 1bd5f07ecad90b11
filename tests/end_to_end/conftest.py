"""A running service for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.harness import Service


@pytest.fixture(scope="package", autouse=True)
def activated() -> Iterator[None]:
    """As after `. .venv/bin/activate`, as the README says: commands begin with `python`, which not every system has."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with 4 slots and short rounds, so that a test sees several of them."""
    running = Service(tmp_path / "data", ["--slots", "4", "--round-seconds", "2"])
    running.start()
    try:
        yield running
    finally:
        running.stop()
