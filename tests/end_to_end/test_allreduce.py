"""All-reduce jobs: one from the command line trains without servers and succeeds, one is resized meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.harness import OPTIMUS, TASKS, Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "jobs" / "digits-allreduce.yaml"


def optimus(service: Service, *arguments: str) -> str:
    environment = {**os.environ, "OPTIMUS_URL": str(service.client.base_url)}
    done = subprocess.run(
        [*OPTIMUS, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_allreduce_job_trains_to_its_end(service: Service) -> None:
    submitted = optimus(service, "submit", str(EXAMPLE), "--name", "rings", "--max-epochs", "30", "--json")
    job_id = str(json.loads(submitted)["id"])
    job = service.wait_for_end(job_id)

    assert job["result"]["metrics"]["test_accuracy"] > 0.9
    points = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    assert {point["servers"] for point in points} == {0}
    optimus(service, "list")


def test_allreduce_job_is_resized_while_it_trains(service: Service) -> None:
    # Two workers are twice as fast on any machine, and so many steps are left that growing is worth a pause.
    job_id = service.submit(
        {
            "name": "rings",
            "task": "paced:mlp",
            "task_args": {"seconds_per_example": 0.01},
            "working_directory": str(TASKS),
            "architecture": "allreduce",
            "workers": {"min": 1, "max": 4},
            "convergence": {"max_epochs": 5000},
        }
    )
    wait_until("it trains on more than one worker", lambda: _running(service, job_id)["running"]["workers"] > 1)
    wait_until("... and goes on", lambda: _running(service, job_id) and _steps_of_groups(service, job_id) > 0)
    assert not [name for name in service.processes() if name.startswith(f"{job_id}-server-")]
    explained = optimus(service, "explain", "rings")
    assert "worker" in explained
    assert "server" not in explained.replace("parameter servers", ""), explained
    optimus(service, "cancel", "rings")
    job = wait_until("its end", lambda: (found := service.job(job_id))["finished_at"] and found)

    assert job["state"] == "cancelled"
    points = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    assert {point["servers"] for point in points} == {0}
    assert len({point["workers"] for point in points}) > 1, "it was resized"
    assert all(point["lost_steps"] == 0 for point in points)
    steps = [point["step"] for point in points]
    assert steps == sorted(steps)
    predicted = service.get(f"/v1/jobs/{job_id}/predictions")["speeds"]
    assert {point["servers"] for point in predicted} == {0}


def _running(service: Service, job_id: str) -> dict[str, Any]:
    job = service.job(job_id)
    assert job["finished_at"] is None, job
    return job


def _steps_of_groups(service: Service, job_id: str) -> int:
    """Steps since the job has had more than one worker."""
    points = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    first = next((point["step"] for point in points if point["workers"] > 1), None)
    return 0 if first is None else int(service.job(job_id)["step"]) - first
