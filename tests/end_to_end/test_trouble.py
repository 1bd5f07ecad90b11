"""A checkpoint store that goes away while a job trains, and comes back: what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.end_to_end.harness import TASKS, Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]


def told(service: Service, job_id: str, kind: str) -> list[str]:
    """The messages of the job's events of one type, oldest first."""
    events = service.get(f"/v1/jobs/{job_id}/events", limit=200)["events"]
    return [event["message"] for event in reversed(events) if event["type"] == kind]


def test_a_checkpoint_store_that_goes_away_is_told_and_that_it_is_back(service: Service, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    job_id = service.submit(
        {
            "name": "trouble",
            "task": "paced:mlp",
            "working_directory": str(TASKS),
            "checkpoint_url": store.as_uri(),
            "checkpoint_seconds": 1,
            "workers": {"max": 1},
            "convergence": {"max_epochs": 100_000},
        }
    )
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
