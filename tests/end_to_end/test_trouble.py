"""Trouble on a first day: a loss that is NaN, code that hangs, a checkpoint store that goes away; what is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.harness import TASKS, Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Gives a job up after two hangs."""
    settings = {"OPTIMUS_MAX_TASK_FAILURES": "2"}
    running = Service(tmp_path / "data", ["--slots", "3", "--round-seconds", "1"], settings=settings)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def submitted(service: Service, task: str, **spec: Any) -> str:
    common = {"name": "trouble", "task": task, "working_directory": str(TASKS), "workers": {"max": 1}}
    return service.submit({**common, "convergence": {"max_epochs": 100_000}, **spec})


def told(service: Service, job_id: str, kind: str) -> list[str]:
    """The messages of the job's events of one type, oldest first."""
    events = service.get(f"/v1/jobs/{job_id}/events", limit=200)["events"]
    return [event["message"] for event in reversed(events) if event["type"] == kind]


def failed(service: Service, job_id: str) -> str:
    job = wait_until(f"{job_id} has ended", lambda: (shown := service.job(job_id))["finished_at"] and shown)
    assert job["state"] == "failed", json.dumps(job)
    assert job["progress"] != 1.0
    return str(job["failure"])


def test_a_loss_that_is_nan_fails_the_job_with_the_reason(service: Service) -> None:
    job_id = submitted(service, "trouble:diverges", retries=0)
    failure = failed(service, job_id)
    assert "NaN or infinite" in failure
    assert "a smaller learning rate often helps" in failure
    assert told(service, job_id, "LossNotFinite")
    words = service.get(f"/v1/jobs/{job_id}/explanation")
    assert words["message"].startswith("The job failed: the ")
    assert words["reason"] is None


def test_code_that_hangs_is_told_each_time_and_fails_the_job_in_the_end(service: Service) -> None:
    job_id = submitted(service, "trouble:hangs", hang_seconds=3)
    first = wait_until("the first hang is told", lambda: told(service, job_id, "WorkerHung"))[0]
    assert "hung: it got no further for longer than `hang_seconds` allows" in first
    assert first.endswith("Hangs within 60 min: 1; at 2 the job fails.")
    assert first in service.get(f"/v1/jobs/{job_id}/explanation")["sentences"]
    failure = failed(service, job_id)
    assert failure.startswith("its workers hung 2 times within 60 min")
    assert "trouble.py" in failure, "its log shows where"


def test_a_checkpoint_store_that_goes_away_is_told_and_that_it_is_back(service: Service, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    job_id = submitted(service, "paced:mlp", checkpoint_url=f"file://{store}", checkpoint_seconds=1)
    wait_until("a checkpoint is there", lambda: list(store.rglob("manifest-*.json")))
    store.rename(tmp_path / "elsewhere")
    store.write_text("in its way")
    news = wait_until("its owner is told", lambda: told(service, job_id, "Checkpoints"))[0]
    assert "could not be written" in news
    assert "Training goes on and tries again; the newest is of step " in news
    assert service.job(job_id)["state"] == "running"
    explained = service.get(f"/v1/jobs/{job_id}/explanation")["sentences"]
    assert any("could not be written" in sentence for sentence in explained)
    store.unlink()
    (tmp_path / "elsewhere").rename(store)
    wait_until("it is back", lambda: "written again" in told(service, job_id, "Checkpoints")[-1])
