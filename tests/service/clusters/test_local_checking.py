"""Asking the tasks' interpreter whether it can load a training task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from optimus_service.clusters.local import LocalClusterOptions, checking

ECHO = (
    "import json, sys; print('noise'); "
    "print(json.dumps({'ok': 'bad' not in sys.argv[1], 'problem': sys.argv[1:], 'line': 7}))"
)


def test_reason_is_the_last_line_of_the_check() -> None:
    command = [sys.executable, "-c", ECHO]
    assert checking.check_task(command, "mine:task", None) is None
    assert checking.check_task(command, "bad:task", None) == "['bad:task'] (line 7)"


def test_check_is_told_where_tasks_would_look_first(tmp_path: Path) -> None:
    reason = checking.check_task([sys.executable, "-c", ECHO], "bad:task", str(tmp_path))
    assert reason is not None
    assert str(tmp_path) in reason


@pytest.mark.parametrize("import_path", ["optimus_workers.no_such_module:task", "no_such_package:task"])
def test_real_check_names_what_is_missing(tmp_path: Path, import_path: str) -> None:
    command = LocalClusterOptions(tmp_path).check_command
    reason = checking.check_task(command, import_path, str(tmp_path))
    assert reason is not None
    assert "no_such" in reason


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
