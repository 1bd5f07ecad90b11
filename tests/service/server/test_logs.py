"""What is logged, what is not, and that nothing waits for it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from tests.service.server.test_server import WAIT_SECONDS, serving

from optimus_service.process.logs import logging_to_stderr
from optimus_service.settings import Settings

CRASHING = """
from optimus_service.store.events import Rounds

def broken(self, *_):
    password = "correct horse"
    try:
        raise ValueError("postgresql://optimus:swordfish@database/optimus " + 100_000 * "x")
    except ValueError as error:
        raise RuntimeError(200_000 * "long") from error

Rounds.page = broken
"""
"""Code to run before the service: one of its calls then fails with long messages and a secret among its variables."""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_error_has_its_places_and_no_local_variables(capfd: pytest.CaptureFixture[str], log_format: Any) -> None:
    password = "correct horse"
    with logging_to_stderr(Settings(log_format=log_format)):
        try:
            len(password) / 0
        except ZeroDivisionError:
            structlog.get_logger("test").exception("a round failed", job="a-1")
    printed = capfd.readouterr().err
    assert "ZeroDivisionError" in printed
    assert "test_an_error_has_its_places_and_no_local_variables" in printed
    assert "horse" not in printed
    if log_format == "json":
        logged = json.loads(printed)
        assert (logged["event"], logged["job"], logged["level"]) == ("a round failed", "a-1", "error")
        assert logged["exception"][0]["exc_type"] == "ZeroDivisionError"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_lines_are_bounded_and_hide_secrets(capfd: pytest.CaptureFixture[str], log_format: Any) -> None:
    settings = Settings(log_format=log_format, token="opensesame-opensesame", secret="swordfish-swordfish")
    job_token = "optimus-job-" + 64 * "a"
    with logging_to_stderr(settings):
        log = structlog.get_logger("test")
        log.info("values", of=[10_000 * "x"] * 1000, deep={"a": {"b": 10**5 * "y"}}, odd="\ud800\0")
        log.info(f"opensesame-opensesame, swordfish-swordfish, Bearer abcdef, {job_token}, postgresql://me:mine@db/x")
        try:
            raise ExceptionGroup("many", [ValueError(10**6 * "z") for _ in range(500)])
        except ExceptionGroup:
            log.exception("a crash")
        logging.getLogger("a library").warning("it says %s", "Bearer abcdef")
    printed = capfd.readouterr().err
    assert len(printed) < 60_000
    for secret in ("opensesame", "swordfish", "abcdef", job_token, "mine"):
        assert secret not in printed
    assert "it says" in printed
    assert "ExceptionGroup" in printed


def test_afterwards_lines_go_where_they_went_before(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger("test")
    with logging_to_stderr(Settings()):
        log.info("to the service's log")
    log.info("as before")
    assert capsys.readouterr().out.count("as before") == 1


def test_a_library_repeats_itself_a_few_times_only(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr(Settings(log_format="json")):
        for number in range(1000):
            logging.getLogger("asyncio").error("out of descriptors: %d", number)
        logging.getLogger("asyncio").error("something else")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in lines][:2] == ["out of descriptors: 0", "out of descriptors: 1"]
    assert lines[-1]["event"] == "something else"
    assert len(lines) < 20


# --- the whole service -----------------------------------------------------------------------------------------------


def test_a_crash_neither_stops_the_service_nor_fills_its_log(tmp_path: Path) -> None:
    token = "the token of this test's user"
    with serving(tmp_path, first=CRASHING, OPTIMUS_TOKEN=token) as (process, told):
        printed: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=printed.extend, args=(process.stderr,))
        reader.start()
        with httpx.Client(base_url=told["url"], trust_env=False, timeout=30) as client:
            answer = client.get("/v1/rounds", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 500
            assert answer.headers["connection"] == "close"  # the server closes it after an error that nobody expected
            assert client.get("/healthz").status_code == 200
        process.terminate()
        process.wait(WAIT_SECONDS)
        reader.join()
    text = "".join(printed)
    assert "RuntimeError" in text
    assert answer.headers["x-request-id"] in text
    assert len(text) < 40_000
    for secret in (token, "horse", "swordfish"):
        assert secret not in text


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """A pipe whose reader has stopped takes 64 KiB, then writes to it wait for ever."""
    with serving(tmp_path) as (process, told):
        with httpx.Client(base_url=told["url"], trust_env=False, timeout=60) as client:
            for _ in range(600):  # some 150 bytes of log each
                assert client.get("/v1/jobs/no-such-job").status_code == 404
            assert client.get("/healthz").status_code == 200
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0


def test_lines_are_written_before_the_process_ends(tmp_path: Path) -> None:
    code = (
        "import structlog; from optimus_service.process.logs import logging_to_stderr as to_stderr\n"
        "from optimus_service.settings import Settings\n"
        "with to_stderr(Settings()):\n    [structlog.get_logger('x').info('line', number=n) for n in range(5000)]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stderr.count("line") == 5000
