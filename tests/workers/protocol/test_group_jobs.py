"""All-reduce jobs of real processes: they change their size, lose workers, and compute what one process would."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, server, worker
from tests.workers.protocol.replay import Replay, final_sections, history

from optimus_workers.coordinator.journal import Formed

# Whole processes on a machine that may be busy with other tests.
ONE_PROCESS = Formed(epoch=1, generation=1, at=0.0, step=0, workers=("one",), servers=(), cause="start")
ARGUMENTS: dict[str, Any] = {"batch_norm": True, "step_seconds": 0.004}
"""Not AdamW with batch normalization: it makes the bias before it, whose gradient is nothing but rounding, wander."""


@pytest.fixture
def make_group_job(make_job: Callable[..., Job]) -> Callable[..., Job]:
    def make(task_args: dict[str, Any] | None = None, **spec: Any) -> Job:
        return make_job(task_args, architecture="allreduce", **spec)

    return make


def check_against_one_process(job: Job, result: dict[str, Any], arguments: dict[str, Any]) -> None:
    """The last checkpoint is, but for rounding, what one process computes on the same global batches."""
    assert result["outcome"] == "succeeded"
    n_sections = 3 if arguments.get("kind") == "adamw" else 2
    version, (parameters, *state) = final_sections(job.directory, n_sections)
    assert version == result["step"]
    replay = Replay(tiny_training.make(**{**arguments, "step_seconds": 0.0}), seed=5)
    replay.follow([ONE_PROCESS], version)
    n_floats = len(replay.vector)
    assert distance(parameters[:n_floats], replay.vector) < 1e-6
    names = ("exp_avg", "exp_avg_sq") if arguments.get("kind") == "adamw" else ("momentum_buffer",)
    for section, name in zip(state, names, strict=True):
        assert distance(section[:n_floats], replay.state(name)) < 1e-5
    buffers = torch.cat([torch.zeros(0), *(buffer.reshape(-1) for buffer in replay.buffers())])
    if len(buffers):
        assert distance(parameters[n_floats : n_floats + len(buffers)], buffers) < 1e-5


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.linalg.norm(one - other) / torch.linalg.norm(other))


def test_training_equals_one_process_across_one_two_four_three_workers(make_group_job: Callable[..., Job]) -> None:
    arguments: dict[str, Any] = {"dropout": False, "step_seconds": 0.003}
    job = make_group_job(arguments)
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    job.wait_for_step(one["step"] + 10)
    job.scale(worker(0), worker(1))
    two = job.wait_for_size(2, 0)
    job.wait_for_step(two["step"] + 10)
    job.scale(*(worker(rank) for rank in range(4)))
    four = job.wait_for_size(4, 0)
    job.wait_for_step(four["step"] + 10)
    job.scale(worker(0), worker(2), worker(3))
    three = job.wait_for_size(3, 0, after_epoch=four["epoch"])
    job.wait_for_step(max(three["step"] + 10, 100))
    result = job.finish()

    check_against_one_process(job, result, arguments)
    assert result["metrics"]["accuracy"] > 0.9
    assert {job.exit_code(name) for name in job.processes} == {0}
    assert all(report["lost_steps"] == 0 for report in job.service.memberships)
    assert all(not report["servers"] for report in job.service.memberships)
    assert four["pause_seconds"] > 0
    assert three["workers"] == [worker(0), worker(2), worker(3)]
    steps = [report["step"] for report in job.service.memberships]
    assert steps == sorted(steps), "steps never go back"
    in_group = [sample for sample in job.service.samples if sample["workers"] > 1]
    assert in_group
    assert all(sample["servers"] == 0 for sample in job.service.samples)
    assert all(sample["sent_bytes"] > 0 for sample in in_group)


def test_any_torch_optimizer_and_a_plateau_schedule_survive_changes_of_size(make_group_job: Callable[..., Job]) -> None:
    arguments: dict[str, Any] = {
        "kind": "RAdam", "learning_rate": 0.01, "plateau": True, "dropout": False, "step_seconds": 0.003,
        "max_gradient_norm": 1.0,
    }  # fmt: skip
    job = make_group_job(arguments, checkpoint_seconds=1.0)
    job.scale(worker(0))
    job.wait_for_step(15)
    job.scale(worker(0), worker(1), worker(2))
    three = job.wait_for_size(3, 0)
    job.wait_for_step(three["step"] + 25)
    job.scale(worker(1), worker(2))  # the one that had the state from the beginning leaves
    two = job.wait_for_size(2, 0, after_epoch=three["epoch"])
    job.wait_for_step(two["step"] + 25)
    job.service.want([], "pause")
    paused = job.wait_for("the pause", lambda: _report_because_of(job, "pause"))
    job.start_coordinator()
    job.scale(worker(0, 1))
    job.wait_for_size(1, 0, after_epoch=paused["epoch"])
    job.wait_for_step(max(paused["step"] + 15, 120))
    result = job.finish()

    assert result["outcome"] == "succeeded"
    version, (parameters, step, average, *others) = final_sections(job.directory, 5)
    replay = Replay(tiny_training.make(**{**arguments, "step_seconds": 0.0}), seed=5)
    replay.follow([ONE_PROCESS], version)
    n_floats = len(replay.vector)
    assert distance(parameters[:n_floats], replay.vector) < 1e-4
    assert distance(average[:n_floats], replay.state("exp_avg")) < 1e-3
    assert step[0] == version == result["step"]
    # The rate fell, and as often as torch's own schedule lets it fall.
    factor = float(others[-1][0])
    assert factor == replay.rate.param_groups[0]["lr"] / 0.01 < 1.0
    assert min(sample["learning_rate"] for sample in job.service.samples) < 0.6 * 0.01 / (1.0 + 0.01 * version)


def test_killed_and_hung_workers_cost_no_step(make_group_job: Callable[..., Job]) -> None:
    job = make_group_job(ARGUMENTS, lease_seconds=3.0)
    job.scale(worker(0), worker(1), worker(2))
    all_three = job.wait_for_size(3, 0)
    job.wait_for_step(all_three["step"] + 10)
    job.kill(worker(1))
    two = job.wait_for_size(2, 0, after_epoch=all_three["epoch"])
    assert two["cause"] == "worker_lost"
    assert two["lost_steps"] == 0
    assert worker(1) in two["message"]
    job.wait_for_step(two["step"] + 5)

    job.processes[worker(0)].send_signal(signal.SIGSTOP)
    one = job.wait_for_size(1, 0, after_epoch=two["epoch"])
    assert one["cause"] == "worker_lost"
    assert one["lost_steps"] == 0
    job.wait_for_step(one["step"] + 5)
    job.processes[worker(0)].send_signal(signal.SIGCONT)
    back = job.wait_for_size(2, 0, after_epoch=one["epoch"])
    assert back["lost_steps"] == 0
    result = job.finish()
    check_against_one_process(job, result, ARGUMENTS)
    steps = [membership.step for membership in history(job.directory)]
    assert steps == sorted(steps), "steps never go back"


def test_the_state_moves_to_new_workers_and_survives_everybody(make_group_job: Callable[..., Job]) -> None:
    arguments: dict[str, Any] = {"kind": "adamw", "step_seconds": 0.004}
    job = make_group_job(arguments, checkpoint_seconds=1.0)
    job.scale(worker(0))
    job.wait_for_step(10)
    job.scale(worker(1), worker(2))  # nobody stays
    handed_over = job.wait_for("the new ones alone", lambda: _report_of(job, {worker(1), worker(2)}))
    assert job.exit_code(worker(0)) == 0
    assert all(report["lost_steps"] == 0 for report in job.service.memberships)
    job.wait_for_step(handed_over["step"] + 5)

    told = job.service.step
    job.kill("job-coordinator-0-0")
    job.start_coordinator()
    after = job.wait_for_restart(2, 0, after_epoch=handed_over["epoch"])
    assert after["step"] >= told
    job.service.want([], "pause")
    assert {job.exit_code(worker(1)), job.exit_code(worker(2))} == {0}
    pause = job.wait_for("the pause", lambda: next((r for r in job.service.memberships if r["cause"] == "pause"), None))

    job.spec["architecture"] = "ps"  # the checkpoints are the same
    n_told = len(job.service.memberships)
    job.start_coordinator()
    job.scale(worker(0, 1), server(0, 1), server(1, 1))
    job.wait_for_size(1, 2, after_epoch=pause["epoch"])
    resumed = job.service.memberships[n_told]  # without a server that comes later than the other
    assert (resumed["cause"], resumed["step"], resumed["lost_steps"]) == ("resume", pause["step"], 0)
    check_against_one_process(job, job.finish(), arguments)


def _report_of(job: Job, workers: set[str]) -> dict[str, Any] | None:
    return next((report for report in job.service.memberships if set(report["workers"]) == workers), None)


def _report_because_of(job: Job, cause: str) -> dict[str, Any] | None:
    return next((report for report in job.service.memberships if report["cause"] == cause), None)
