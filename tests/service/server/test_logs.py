"""What is logged, and what is not."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from optimus_service.logs import configure_logs
from optimus_service.settings import Settings


@pytest.fixture
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_an_error_is_one_line_with_its_places_and_without_local_variables(
    as_before: None, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs(Settings(log_format="json"))
    password = "correct horse"
    try:
        len(password) / 0
    except ZeroDivisionError:
        structlog.get_logger("test").exception("a round failed", job="a-1")
    (line,) = capsys.readouterr().err.splitlines()
    logged = json.loads(line)
    assert (logged["event"], logged["job"], logged["level"]) == ("a round failed", "a-1", "error")
    assert logged["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert (
        logged["exception"][0]["frames"][-1]["name"]
        == "test_an_error_is_one_line_with_its_places_and_without_local_variables"
    )
    assert "horse" not in line
