"""What an owner does with a job, on the command line and with real processes: set, pause, resume, retry, delete."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.harness import OPTIMUS, TASKS, Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]


def optimus(service: Service, *arguments: str) -> Any:
    """What the command answers, as JSON."""
    environment = {**os.environ, "OPTIMUS_URL": str(service.client.base_url)}
    command = [*OPTIMUS, *arguments, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_job_is_changed_paused_resumed_run_again_and_deleted(service: Service) -> None:
    spec = {
        "name": "mine",
        "task": "paced:mlp",
        "task_args": {"seconds_per_pass": 0.01},
        "working_directory": str(TASKS),
        "workers": {"max": 1},
        "servers": {"max": 1},
        "convergence": {"max_epochs": 100_000},
        "labels": {"team": "vision"},
    }
    job_id = service.submit(spec)
    wait_until("it makes steps", lambda: service.job(job_id)["step"] > 20)
    assert optimus(service, "set", job_id, "--priority", "2", "--label", "try=2")["spec"]["labels"] == {
        "team": "vision",
        "try": "2",
    }
    assert [each["id"] for each in optimus(service, "list", "--label", "try=2")["jobs"]] == [job_id]
    optimus(service, "pause", job_id)
    wait_until("it is paused", lambda: service.job(job_id)["state"] == "paused")
    wait_until("its tasks have left", lambda: not service.processes())
    paused = service.job(job_id)
    assert paused["reason"] == "PausedByOwner"
    assert list((service.directory / "jobs" / job_id / "checkpoints").glob("manifest-*.json"))
    optimus(service, "resume", job_id)
    goes_on = wait_until("it goes on", lambda: (job := service.job(job_id))["step"] > paused["step"] + 5 and job)
    assert goes_on["attempt"] == 0
    kinds = [event["type"] for event in service.get(f"/v1/jobs/{job_id}/events", limit=200)["events"]]
    assert kinds.index("ResumedByOwner") < kinds.index("PausedByOwner") < kinds.index("JobChanged")
    optimus(service, "cancel", job_id)
    wait_until("it has ended", lambda: service.job(job_id)["finished_at"])
    wait_until("its tasks are gone", lambda: not service.get(f"/v1/jobs/{job_id}/tasks")["tasks"])
    again = optimus(service, "retry", job_id)
    assert (again["spec"]["priority"], again["step"]) == (2.0, 0)
    wait_until("it trains again", lambda: service.job(again["id"])["step"] > 0)
    assert optimus(service, "delete", job_id, "--checkpoints", "--yes")["deleted"] == job_id
    assert [job["id"] for job in service.get("/v1/jobs")["jobs"]] == [again["id"]]
    assert not (service.directory / "jobs" / job_id).exists()


def task_job() -> dict[str, Any]:
    return {"task": "paced:mlp", "task_args": {"seconds_per_pass": 0.01}, "working_directory": str(TASKS)}


def script_job() -> dict[str, Any]:
    script = str(TASKS.parent / "scripts" / "elastic_train.py")
    options = ["--epochs", "1000", "--step-seconds", "0.03", "--out", "final.pt"]
    return {"command": ["python", script, *options], "architecture": "script", "global_batch_size": 48}


@pytest.mark.parametrize("kind", [task_job, script_job])
def test_a_running_job_ends_at_the_very_step_of_its_newest_limit(service: Service, kind: Any, tmp_path: Path) -> None:
    spec = {"name": "longer", "working_directory": str(tmp_path), "workers": {"max": 1}, **kind()}
    job_id = service.submit(spec | {"convergence": {"max_steps": 300}})
    wait_until("it makes steps", lambda: service.job(job_id)["step"] > 20)
    optimus(service, "set", job_id, "--max-steps", "100000")
    before = wait_until("it goes on", lambda: (job := service.job(job_id))["step"] > 320 and job)
    last = before["step"] + 300  # on a busy machine a command takes seconds to begin
    optimus(service, "set", job_id, "--max-steps", str(last))
    ended = service.wait_for_end(job_id)
    assert (ended["step"], ended["membership_epoch"]) == (last, before["membership_epoch"]), "its tasks went on"
