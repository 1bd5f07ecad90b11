"""A real job whose batch the scheduler chooses: it measures its noise, gets a larger batch, and learns as it should."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.end_to_end.harness import TASKS, Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]

BOUNDS = {"minimum": 4, "maximum": 64, "per_pass": 256, "warmup_epochs": 1.0}
EPOCHS = 12.0


def test_a_job_gets_a_larger_batch_than_its_smallest(service: Service) -> None:
    job_id = service.submit(
        {
            "name": "elastic",
            # A pass of 4 examples takes as long as one of 64 on any machine, so that a larger batch is clearly better.
            "task": "paced:mlp",
            "task_args": {"seconds_per_pass": 0.01, "learning_rate": 0.01},
            "working_directory": str(TASKS),
            "architecture": "allreduce",
            "workers": {"min": 1, "max": 2},
            "elastic_batch": BOUNDS,
            "convergence": {"max_epochs": EPOCHS},
        }
    )
    larger = wait_until("a larger batch", lambda: _with_larger_batch(service, job_id))
    job = service.wait_for_end(job_id)

    points = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    assert points[0]["global_batch"] == BOUNDS["minimum"]
    assert larger["cause"] in ("batch", "rescale")
    assert all(point["lost_steps"] == 0 for point in points)
    steps = [point["step"] for point in points]
    assert steps == sorted(steps)
    limit = job["profile"]["n_examples"] * EPOCHS / BOUNDS["minimum"]
    assert job["profile"]["steps_per_epoch"] == job["profile"]["n_examples"] / BOUNDS["minimum"]
    # The last step of a larger batch may pass the limit by a part of a step, and `step` tells whole ones.
    most = limit + BOUNDS["maximum"] / BOUNDS["minimum"] + 1
    assert math.floor(limit) <= job["step"] < most, "in steps with the smallest batch"
    assert job["rescales"] == sum(point["cause"] == "rescale" for point in points)
    assert job["result"]["metrics"]["test_accuracy"] > 0.9
    decisions = service.get(f"/v1/jobs/{job_id}/decisions", limit=100)["decisions"]
    assert any((decision["batch"] or 0) > BOUNDS["minimum"] for decision in decisions)


def _with_larger_batch(service: Service, job_id: str) -> dict[str, Any] | None:
    points = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    found: dict[str, Any] | None = next((each for each in points if each["global_batch"] > BOUNDS["minimum"]), None)
    assert found is not None or service.job(job_id)["finished_at"] is None, "it ended with its smallest batch"
    return found
