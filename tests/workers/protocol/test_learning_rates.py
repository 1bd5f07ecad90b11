"""What a job's workers tell of its learning rates is what its updates use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, server, worker


@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
@pytest.mark.parametrize("schedule", ["cosine", "step"])
def test_the_plan_and_each_sample_tell_the_rate_of_the_step(
    make_job: Callable[..., Job], architecture: str, schedule: str
) -> None:
    job = make_job(
        {"schedule": schedule, "step_seconds": 0.02}, architecture=architecture, convergence={"max_steps": 45}
    )
    job.scale(worker(0), worker(1), *([server(0)] if architecture == "ps" else []))
    assert job.wait_for_result()["step"] == 45
    task = tiny_training.make(schedule=schedule)
    expected = [task.learning_rate(step) for step in range(45)]
    plan = job.service.wait_for("the plan", lambda: job.service.planned_rates)
    assert np.interp(range(45), plan["steps"], plan["rates"]).tolist() == pytest.approx(expected, rel=1e-6)
    told = {(sample["rank"], sample["step"]): sample["learning_rate"] for sample in job.service.samples}
    assert {rank for rank, _ in told} == {0, 1}
    assert told == {(rank, step): pytest.approx(expected[step - 1]) for rank, step in told}
    assert max(step for _, step in told) == 45
