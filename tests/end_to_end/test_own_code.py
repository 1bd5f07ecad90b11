"""A user's own training code, submitted from its folder by the command line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.end_to_end.harness import OPTIMUS, Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]
EXAMPLES = Path(__file__).parents[2] / "examples"


def optimus(service: Service, *arguments: str, cwd: Path = EXAMPLES) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPTIMUS_URL": str(service.client.base_url)}
    return subprocess.run(
        [*OPTIMUS, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=300
    )


def test_own_training_code_by_import_path(service: Service) -> None:
    own = ("submit", "--name", "mine", "--task", "my_training:task", "--max-epochs", "2")
    done = optimus(service, *own, "--watch", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = service.get("/v1/jobs")["jobs"]
    assert job["state"] == "succeeded"

    explained = optimus(service, "explain", "mine", "--json")
    assert explained.returncode == 0
    assert json.loads(explained.stdout)["state"] == "succeeded"
    logs = optimus(service, "logs", "mine")
    assert logs.returncode == 0


BROKEN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from optimus_workers.task import OptimizerSpec, TrainingTask

def loss(model, batch):
    raise RuntimeError("no labels for cats")

def task(directory="") -> TrainingTask:
    if directory:
        raise RuntimeError(f"no data at {directory}")
    return TrainingTask(
        model=lambda: nn.Linear(4, 2), loss=loss, dataset=TensorDataset(torch.zeros(64, 4)),
        optimizer=OptimizerSpec(learning_rate=0.1), global_batch_size=8,
    )
"""


def test_error_in_own_code_is_said_at_submission_or_fails_the_job_with_its_traceback(
    service: Service, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    submit = ("submit", "--name", "broken", "--task", "broken:task", "--watch", "--json")
    refused = optimus(service, *submit, "--set", "directory=/data/cats", cwd=tmp_path)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "no data at /data/cats" in refused.stderr
    assert service.get("/v1/jobs")["jobs"] == []

    done = optimus(service, *submit, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (job,) = service.get("/v1/jobs")["jobs"]
    assert job["state"] == "failed"
    assert "no labels for cats" in job["failure"]
    wait_until("its other tasks have ended", lambda: not service.processes())
