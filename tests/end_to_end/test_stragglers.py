"""A worker on a slow machine: found by its own timings, told, and replaced by the scheduler on another node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.harness import Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]

TASK = """
import os, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
from optimus_workers.task import OptimizerSpec, TrainingTask

IS_SLOW = os.environ["OPTIMUS_TASK_NAME"].endswith("worker-1-0")

def loss(model, batch):
    time.sleep(0.5 if IS_SLOW else 0.05)
    return model(batch[0]).square().mean()

def task():
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TrainingTask(
        model=lambda: nn.Linear(4, 2), loss=loss, dataset=TensorDataset(data),
        optimizer=OptimizerSpec(learning_rate=0.01), global_batch_size=8, micro_batches=2,
    )
"""
"""The first incarnation of worker 1 needs ten times as long as anybody else: a busy machine hides a smaller factor."""


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Service]:
    running = Service(tmp_path / "data", ["--slots", "6", "--nodes", "2", "--round-seconds", "2"])
    running.start()
    try:
        yield running
    finally:
        running.stop()


def test_straggler_is_reported_and_replaced_on_another_node(two_nodes: Service, tmp_path: Path) -> None:
    (tmp_path / "slow_machine.py").write_text(TASK)
    job_id = two_nodes.submit(
        {
            "name": "waits-for-one",
            "task": "slow_machine:task",
            "working_directory": str(tmp_path),
            "architecture": "allreduce",
            "convergence": {"max_steps": 100_000},
            "workers": {"min": 2, "max": 2},
        }
    )
    slow, fast, replacement = (f"{job_id}-worker-{rank}" for rank in ("1-0", "0-0", "1-1"))
    wait_until("both train", lambda: two_nodes.job(job_id)["running"]["workers"] == 2)
    before = _nodes(two_nodes)
    told = wait_until("the straggler is reported", lambda: _events(two_nodes, job_id, "Straggler"))
    assert [event["data"]["task"] for event in told] == [slow], "the one that others wait for, and only that"

    wait_until("another one is started in its place", lambda: replacement in two_nodes.processes())
    after = _nodes(two_nodes)
    assert after[replacement] != before[slow]
    assert after[fast] == before[fast], "who was fast stays"
    wait_until("the slow one has left", lambda: slow not in two_nodes.processes())
    wait_until("the new one takes part", lambda: _allocations(two_nodes, job_id)[-1]["workers"] == 2)
    points = _allocations(two_nodes, job_id)
    assert points[-1]["cause"] in ("rescale", "replaced"), "the slow one may leave before the other joins"
    assert all(point["lost_steps"] == 0 for point in points)
    step = two_nodes.job(job_id)["step"]
    wait_until("training goes on", lambda: two_nodes.job(job_id)["step"] > step + 10)


def _allocations(service: Service, job_id: str) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    return points


def _events(service: Service, job_id: str, kind: str) -> list[dict[str, Any]]:
    found = service.get(f"/v1/jobs/{job_id}/events", limit=200)["events"]
    return [event for event in found if event["type"] == kind]


def _nodes(service: Service) -> dict[str, str]:
    """Task → the node that it is on."""
    return {task: node["name"] for node in service.get("/v1/nodes")["nodes"] for task in node["tasks"]}
