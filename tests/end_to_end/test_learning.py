"""A real service that learns: a metric ends a job, the next job of the task is judged by it, money is counted."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.harness import Service, wait_until
from tests.end_to_end.test_own_code import optimus

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]

JOB = {
    "task": "optimus_workers.zoo.digits:mlp",
    "task_args": {"width": 128},
    "workers": {"max": 2},
    "servers": {"max": 1},
    "convergence": {"target_metric": {"name": "test_accuracy", "at_least": 0.93}, "max_epochs": 60},
}


def test_the_second_job_of_a_task_is_judged_by_the_first(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", ["--slots", "4", "--round-seconds", "1", "--price-per-core-hour", "36"])
    service.start()
    try:
        first = service.wait_for_end(service.submit({"name": "first", **JOB}))
        assert first["epoch"] < 60, "the metric ended it"
        assert first["result"]["metrics"]["test_accuracy"] >= 0.85
        finished = service.get(f"/v1/jobs/{first['id']}/predictions")
        values = [point["value"] for point in finished["metric"]["values"]]
        assert values[-1] >= 0.93
        seconds = finished["outcome"]["seconds"]
        # Two tasks at least (a worker and a server) at a hundredth a second each, three at most.
        assert 0.015 * seconds < finished["outcome"]["cost"] < 0.035 * seconds

        second = service.submit({"name": "second", **JOB})
        learned = wait_until("the first is used", lambda: judged(service, second)["finished_runs"] == 1)
        assert learned
        service.wait_for_end(second)
        (taught, *_) = finished_runs(service)
        # Worker 0 told the layers; what they reach of one core's data sheet is measured with them.
        assert taught["device"] == "CPU core"
        assert 0.001 < taught["percent_of_peak"] < 2.0
        assert len(taught["losses"]) >= 3  # a point an epoch; how many depends on when a round sees the metric
        shown = optimus(service, "predict", first["id"])
        assert shown.returncode == 0, shown.stderr
        assert "What was predicted, and what came" in shown.stdout
        assert "test_accuracy" in shown.stdout
    finally:
        service.stop()


def finished_runs(service: Service) -> list[dict[str, Any]]:
    """What ended jobs taught, from the database."""
    with closing(sqlite3.connect(f"file:{service.directory / 'optimus.db'}?mode=ro", uri=True)) as database:
        return [json.loads(text) for (text,) in database.execute("SELECT document FROM finished_runs ORDER BY id")]


def judged(service: Service, job_id: str) -> dict[str, object]:
    learned: dict[str, object] = service.get(f"/v1/jobs/{job_id}/predictions")["learned"]
    return learned
