"""What tests of the client share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.agent import Agent, agent


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Agent]:
    with agent(tmp_path) as found:
        yield found
