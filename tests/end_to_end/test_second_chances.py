"""Errors of a job's own code that do not come again: retries, with real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from tests.end_to_end.harness import OPTIMUS, Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]
STEPS = 60
FLAKY = """
import os
from pathlib import Path
from threading import Event

import torch
from torch import nn
from torch.utils.data import TensorDataset
from optimus_workers.task import OptimizerSpec, TrainingTask

calls = 0

def loss(model, batch):
    global calls
    calls += 1
    broken = Path(__file__).with_name("broken")
    if calls >= 20 and broken.exists():
        checkpoints = Path(os.environ["OPTIMUS_JOB_DIRECTORY"], "checkpoints")
        if any(checkpoints.glob("manifest-*[1-9]*.json")):
            broken.unlink()
            raise OSError("stale file handle")
        Event().wait(0.2)  # the next checkpoint is due within a second: it is there before the job's last step
    return model(batch[0]).square().mean()

def task(learning_rate=0.01, width=2):
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TrainingTask(
        model=lambda: nn.Linear(4, width), loss=loss, dataset=TensorDataset(data),
        optimizer=OptimizerSpec(learning_rate=learning_rate), global_batch_size=8, micro_batches=1,
    )
"""
"""Fails once, after 20 steps and a checkpoint, while there is a file `broken` beside it. `width`: of the model."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests here: each has jobs, and a directory of code, of its own."""
    data = tmp_path_factory.mktemp("service") / "data"
    running = Service(data, ["--slots", "3", "--round-seconds", "1"], settings={"OPTIMUS_RETRY_SECONDS": "30"})
    running.start()
    try:
        yield running
    finally:
        running.stop()


def flaky_job(directory: Path, **changes: Any) -> dict[str, Any]:
    (directory / "flaky.py").write_text(FLAKY)
    (directory / "broken").touch()
    one = {"min": 1, "max": 1}
    spec: dict[str, Any] = {"name": "flaky", "checkpoint_seconds": 1, "workers": one, "servers": one}
    spec |= {"task": "flaky:task", "working_directory": str(directory)}
    return spec | {"convergence": {"max_steps": STEPS}, **changes}


def events_of(service: Service, job_id: str, kind: str) -> list[dict[str, Any]]:
    found = service.get(f"/v1/jobs/{job_id}/events", limit=200)["events"]
    return [event for event in found if event["type"] == kind]


def test_an_error_that_does_not_come_again_costs_no_step(service: Service, tmp_path: Path) -> None:
    job_id = service.submit(flaky_job(tmp_path))
    (scheduled,) = wait_until("its code has failed", lambda: events_of(service, job_id, "RetryScheduled"))
    assert "OSError: stale file handle" in scheduled["message"]
    describe = [*OPTIMUS, "describe", job_id, "--url", str(service.client.base_url)]
    described = subprocess.run(describe, check=True, capture_output=True, text=True, timeout=240).stdout
    assert "waits for retry 1 of 2, " in described
    service.kill()  # between the failure and the retry
    service.start()
    job = service.wait_for_end(job_id)
    assert (job["step"], job["retries"], job["attempt"]) == (STEPS, 1, 1)
    assert job["last_error"] == "OSError: stale file handle"
    assert len(events_of(service, job_id, "RetryScheduled")) == 1
    (resumed,) = [each for each in events_of(service, job_id, "MembershipChanged") if each["data"]["cause"] == "resume"]
    assert resumed["data"]["step"] > 0
    assert resumed["data"]["lost_steps"] < STEPS


def parameters(service: Service, job_id: str, *, step: int | None = None) -> tuple[int, bytes]:
    """Version and parameters of a job's checkpoint (one server): the newest, or the one of a step."""
    name = "manifest-*.json" if step is None else f"manifest-{step:012d}.json"
    manifest = json.loads(max(service.directory.glob(f"jobs/{job_id}/checkpoints/{name}")).read_text())
    (file,) = manifest["files"]
    shard = load_file(service.directory / "jobs" / job_id / "checkpoints" / file["name"])
    return manifest["version"], shard["parameters"].tobytes()


def test_a_failed_job_goes_on_when_it_is_resumed(service: Service, tmp_path: Path) -> None:
    job_id = service.submit(flaky_job(tmp_path, retries=0))
    failed = wait_until("it has failed", lambda: (shown := service.job(job_id))["finished_at"] and shown)
    assert (failed["state"], failed["retries"]) == ("failed", 0)
    version, _ = parameters(service, job_id)
    service.kill()
    service.start()
    assert service.client.post(f"/v1/jobs/{job_id}/resume").status_code == 200
    job = service.wait_for_end(job_id)
    assert (job["step"], job["attempt"], job["failure"]) == (STEPS, 1, None)
    (resumed,) = [each for each in events_of(service, job_id, "MembershipChanged") if each["data"]["cause"] == "resume"]
    assert resumed["data"]["step"] == version > 0


def test_a_job_starts_from_the_last_checkpoint_of_another(service: Service, tmp_path: Path) -> None:
    first = service.submit(flaky_job(tmp_path, retries=0))
    failed = wait_until("it has failed", lambda: (shown := service.job(first))["finished_at"] and shown)
    version, learned = parameters(service, first)
    assert failed["state"] == "failed"
    assert version > 0

    # Another rate, and what it starts from is at once out of the other job's reach.
    changes = {"from_job": first, "task_args": {"learning_rate": 0.5}, "convergence": {"max_steps": 1}}
    second = service.submit(flaky_job(tmp_path, **changes) | {"name": "second"})
    (tmp_path / "broken").unlink()
    shutil.rmtree(service.directory / "jobs" / first)
    service.kill()
    service.start()
    job = service.wait_for_end(second)
    assert (job["state"], job["step"], job["spec"]["from_job"]) == ("succeeded", 1, first)
    assert parameters(service, second, step=0) == (0, learned)
    assert events_of(service, second, "JobSubmitted")[0]["message"].endswith(f"last checkpoint of job {first}.")

    third = service.submit(flaky_job(tmp_path, from_job=second, task_args={"width": 3}))
    job = wait_until("it has failed", lambda: (shown := service.job(third))["finished_at"] and shown)
    assert job["state"] == "failed"
    assert "its model has 10 parameters, this task's has 15" in job["failure"]


def test_a_job_starts_from_a_checkpoint_behind_a_url(service: Service, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    first = service.submit(flaky_job(tmp_path, retries=0, checkpoint_url=url))
    (tmp_path / "broken").unlink()
    service.wait_for_end(first)
    refused = service.client.post("/v1/jobs", json=flaky_job(tmp_path, from_job=first))
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["message"].endswith(f"give this job checkpoint_url: {url}")
    changes: dict[str, Any] = {"from_job": first, "checkpoint_url": url, "architecture": "allreduce"}
    # No checkpoint but the first and the last: only the newest two are kept. The last one must not overtake the first.
    changes |= {"servers": {"min": 0, "max": 0}, "checkpoint_seconds": 600}
    second = service.submit(flaky_job(tmp_path, **changes) | {"convergence": {"max_steps": 300}})
    (tmp_path / "broken").unlink()
    assert service.wait_for_end(second)["step"] == 300
    shards = [max((tmp_path / "store" / first).glob(f"v{STEPS}-*")), *(tmp_path / "store" / second).glob("v0-*")]
    assert len({load_file(shard)["parameters"].tobytes() for shard in shards}) == 1
    assert len(shards) == 2
    assert not (service.directory / "jobs" / second / "origin").exists()
