"""Jobs of real processes that change their size: what they compute does not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, server, worker
from tests.workers.protocol.replay import Replay, final_sections, history, train_in_large_batches
from torch import nn

from optimus_workers.coordinator.journal import Formed
from optimus_workers.task import TrainingTask
from optimus_workers.wire.ranges import aligned

# Whole processes on a machine that may be busy with other tests.
MAX_GRADIENT_NORM = 0.3


def test_sync_training_is_a_replay_of_its_membership_history(make_job: Callable[..., Job]) -> None:
    arguments: dict[str, Any] = {"dropout": False, "grouped": True, "max_gradient_norm": 1e9, "step_seconds": 0.005}
    # Of the task's and the job's limit the job's counts.
    job = make_job(arguments, max_gradient_norm=MAX_GRADIENT_NORM)
    job.scale(worker(0), worker(1), server(0))
    job.wait_for_step(5)
    job.scale(*(worker(rank) for rank in range(4)), *(server(rank) for rank in range(3)))
    large = job.wait_for_size(4, 3)
    job.wait_for_step(large["step"] + 5)
    job.scale(worker(0), worker(2), worker(3), server(1), server(2))
    small = job.wait_for_size(3, 2, after_epoch=large["epoch"])
    job.wait_for_step(small["step"] + 10)
    _pause(job)
    job.start_coordinator()
    job.scale(worker(0, 1), server(0, 1))
    resumed = job.wait_for_size(1, 1, after_epoch=small["epoch"])
    job.wait_for_step(max(resumed["step"] + 10, 100))
    job.service.want([worker(0, 1), server(0, 1)], "finish")
    result = job.wait_for_result()

    assert result["outcome"] == "succeeded"
    n_steps = result["step"]
    assert result["metrics"]["accuracy"] > 0.9
    assert result["final_loss"] < 0.5
    assert {job.exit_code(name) for name in job.processes} == {0}
    assert large["lost_steps"] == small["lost_steps"] == resumed["lost_steps"] == 0
    assert large["pause_seconds"] > 0
    assert small["workers"] == [worker(0), worker(2), worker(3)]
    steps = [report["step"] for report in job.service.memberships]
    assert steps == sorted(steps), "steps never go back"
    assert job.service.step == n_steps
    assert job.service.profile is not None
    assert job.service.profile["steps_per_epoch"] == 10.0

    version, (parameters, momentum) = final_sections(job.directory, 2)
    replay = _replayed(arguments, history(job.directory), n_steps)
    assert version == n_steps
    assert torch.equal(parameters, replay.vector.data)
    assert torch.equal(momentum, replay.state("momentum_buffer"))

    expected = train_in_large_batches(_without_delay(arguments), 5, n_steps)
    distance = torch.linalg.norm(replay.plain() - expected) / torch.linalg.norm(expected)
    assert distance < 1e-6


def test_async_training_pauses_and_resumes_on_another_size(make_job: Callable[..., Job], tmp_path: Path) -> None:
    arguments = {"momentum": 0.0, "step_seconds": 0.01, "max_gradient_norm": 1.0}
    url = f"file://{tmp_path}/bucket"
    job = make_job(arguments, mode="async", convergence={"max_epochs": 80.0}, checkpoint_url=url)
    job.scale(worker(0), worker(1), server(0))
    job.wait_for_step(20)
    pause = _pause(job)
    assert (pause["workers"], pause["servers"]) == ([], [])
    assert job.service.result is None

    job.start_coordinator()
    job.scale(worker(0, 1), server(0, 1), server(1, 1))
    result = job.wait_for_result()

    resume = _report_of(job, "resume")
    assert resume is not None
    assert resume["step"] == pause["step"]
    assert resume["lost_steps"] == 0
    assert result["checkpoint"].startswith(f"{url}/job/manifest-")
    assert not list((tmp_path / "checkpoints").iterdir()), "nothing is kept here"
    assert result["step"] == 800, "exactly so many steps, whoever did them"
    assert result["metrics"]["accuracy"] > 0.8
    assert any(sample["staleness"] for sample in job.service.samples), "two workers overtake each other"
    assert all(sample["staleness"] is not None for sample in job.service.samples)


def _pause(job: Job) -> dict[str, Any]:
    job.service.want([], "pause")
    assert {job.exit_code(name) for name in list(job.processes)} == {0}
    report: dict[str, Any] = job.wait_for("the pause", lambda: _report_of(job, "pause"))
    return report


def _report_of(job: Job, cause: str) -> dict[str, object] | None:
    return next((report for report in job.service.memberships if report["cause"] == cause), None)


def _replayed(arguments: dict[str, Any], memberships: list[Formed], last_step: int) -> Replay:
    replay = Replay(_without_delay(arguments), seed=5)
    replay.follow(memberships, last_step)
    return replay


def _without_delay(arguments: dict[str, Any]) -> TrainingTask:
    changes = {"step_seconds": 0.0, "max_gradient_norm": MAX_GRADIENT_NORM}
    return tiny_training.make(**{**arguments, **changes})


def test_a_job_with_compressed_pushes_converges_across_a_change(make_job: Callable[..., Job]) -> None:
    job = make_job({"step_seconds": 0.002}, compression="int8")
    job.scale(worker(0), server(0))
    job.wait_for_step(20)
    job.scale(worker(0), worker(1), server(0), server(1))
    large = job.wait_for_size(2, 2)
    job.wait_for_step(large["step"] + 100)
    result = job.finish()

    assert result["outcome"] == "succeeded"
    assert result["metrics"]["accuracy"] > 0.9
    assert Path(result["model"]).is_file()
    assert large["lost_steps"] == 0
    n_floats = aligned(nn.utils.parameters_to_vector(tiny_training.network().parameters()).numel())
    per_step = [sample["sent_bytes"] / sample["n_steps"] for sample in job.service.samples if sample["servers"] == 1]
    assert max(per_step) < 1.5 * n_floats, "a byte for each value, not four"
