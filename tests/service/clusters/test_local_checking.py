"""Asking the tasks' interpreter whether it can load a training task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from optimus_service.clusters.local import checking

ECHO = "import json, sys; print('noise'); print(json.dumps({'ok': 'bad' not in sys.argv[1], 'reason': sys.argv[1:]}))"


def test_reason_is_the_last_line_of_the_check() -> None:
    command = [sys.executable, "-c", ECHO]
    assert checking.check_task(command, "mine:task", None) is None
    assert checking.check_task(command, "bad:task", None) == "['bad:task']"


def test_check_runs_where_the_tasks_would(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import json, os; print(json.dumps({'ok': False, 'reason': os.getcwd()}))"]
    assert checking.check_task(command, "mine:task", str(tmp_path)) == str(tmp_path)


def test_missing_directory_is_named() -> None:
    reason = checking.check_task([sys.executable], "mine:task", "/no/such/place")
    assert reason is not None
    assert "/no/such/place" in reason


@pytest.mark.parametrize("code", ["print('not json')", "", "print(5)", "raise SystemExit(9)"])
def test_unclear_answer_does_not_refuse_a_job(code: str) -> None:
    assert checking.check_task([sys.executable, "-c", code], "mine:task", None) is None


def test_slow_or_missing_check_does_not_refuse_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "CHECK_SECONDS", 0.05)
    assert (
        checking.check_task([sys.executable, "-c", "import threading; threading.Event().wait()"], "m:t", None) is None
    )
    assert checking.check_task(["/no/such/python"], "m:t", None) is None
