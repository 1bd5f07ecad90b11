"""Jobs of real processes that lose one: they go on, and what they compute is what they would have computed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, server, worker
from tests.workers.protocol.replay import Replay, final_sections, history

from optimus_workers.checkpoint.manifest import newest_manifest
from optimus_workers.checkpoint.storage import LocalStorage, checkpoint_directory

# Whole processes on a machine that may be busy with other tests.
ARGUMENTS: dict[str, Any] = {"kind": "adamw", "batch_norm": True, "step_seconds": 0.008}


def check_against_replay(job: Job, result: dict[str, Any]) -> None:
    """The last checkpoint is bit for bit what one process computes along the same membership history."""
    assert result["outcome"] == "succeeded"
    version, (parameters, first_moment, second_moment) = final_sections(job.directory, 3)
    replay = Replay(tiny_training.make(**{**ARGUMENTS, "step_seconds": 0.0}), seed=5)
    replay.follow(history(job.directory), result["step"])
    assert version == result["step"]
    n_floats = len(replay.vector)
    assert torch.equal(parameters[:n_floats], replay.vector.data)
    assert torch.equal(first_moment[:n_floats], replay.state("exp_avg"))
    assert torch.equal(second_moment[:n_floats], replay.state("exp_avg_sq"))
    buffers = torch.cat([buffer.reshape(-1) for buffer in replay.buffers()])
    assert torch.equal(parameters[n_floats : n_floats + len(buffers)], buffers)


def test_workers_and_coordinator_may_die_without_a_lost_step(make_job: Callable[..., Job]) -> None:
    job = make_job(ARGUMENTS)
    job.scale(worker(0), worker(1), server(0))
    both = job.wait_for_size(2, 1)
    job.wait_for_step(both["step"] + 5)

    job.kill(worker(1))
    alone = job.wait_for_size(1, 1, after_epoch=both["epoch"])
    assert alone["cause"] == "worker_lost"
    assert alone["lost_steps"] == 0
    assert worker(1) in alone["message"]

    job.scale(worker(0), worker(1, 1), server(0))
    replaced = job.wait_for_size(2, 1, after_epoch=alone["epoch"])
    job.wait_for_step(replaced["step"] + 5)
    told = job.service.step
    job.kill("job-coordinator-0-0")
    job.start_coordinator()
    after = job.wait_for_restart(2, 1, after_epoch=replaced["epoch"])
    assert after["step"] >= told

    job.processes[worker(1, 1)].terminate()
    assert job.exit_code(worker(1, 1)) == 143
    left = job.wait_for_size(1, 1, after_epoch=after["epoch"])
    assert left["cause"] == "rescale"
    assert left["lost_steps"] == 0

    check_against_replay(job, job.finish())
    assert {job.exit_code(worker(0)), job.exit_code(server(0))} == {0}


def test_a_killed_server_costs_the_steps_since_the_checkpoint_and_a_hung_worker_none(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(ARGUMENTS, checkpoint_seconds=1.0, lease_seconds=3.0)
    job.scale(worker(0), server(0), server(1))
    both = job.wait_for_size(1, 2)
    job.wait_for_step(both["step"] + 40)
    checkpointed = job.wait_for(
        "a checkpoint", lambda: _checkpointed_step(job) > both["step"] and _checkpointed_step(job)
    )
    job.kill(server(1))
    alone = job.wait_for_size(1, 1, after_epoch=both["epoch"])
    assert alone["cause"] == "server_lost"
    assert alone["step"] >= checkpointed

    hung = job.processes[worker(0)]
    hung.send_signal(signal.SIGSTOP)
    job.wait_for("the lease to end", lambda: "has not been heard of" in job.logs())
    hung.send_signal(signal.SIGCONT)
    back = job.wait_for_size(1, 1, after_epoch=alone["epoch"])
    assert back["cause"] == "worker_lost"
    assert back["lost_steps"] == 0
    check_against_replay(job, job.finish())


def test_the_users_error_ends_the_job_with_its_traceback(make_job: Callable[..., Job]) -> None:
    job = make_job({"fails_at": 30})
    job.scale(worker(0), server(0))
    result = job.wait_for_result()

    assert result["outcome"] == "failed"
    assert result["error"].rstrip().endswith("ValueError: the user's mistake")
    assert job.exit_code(worker(0)) == 3
    assert job.exit_code(server(0)) == 0
    assert job.exit_code("job-coordinator-0-0") == 3
    assert "the user's mistake" in (job.directory / f"{worker(0)}.log").read_text()


@pytest.mark.parametrize(
    ("exits_in", "changes"),
    [
        ("make", {}),
        ("model", {}),
        ("dataset", {}),
        ("dataset", {"prefetch": 2}),
        ("loss", {}),
        ("evaluate", {}),
    ],
)
def test_a_worker_whose_code_calls_exit_fails_the_job(
    make_job: Callable[..., Job], exits_in: str, changes: dict[str, Any]
) -> None:
    job = make_job({"exits_in": exits_in} | changes, convergence={"max_steps": 5})
    job.scale(worker(0), server(0))
    result = job.wait_for_result()

    assert result["outcome"] == "failed"
    assert "SystemExit: 0" in result["error"]
    assert result["error"].rstrip().endswith("raise an error instead.")
    assert job.exit_code(worker(0)) == 3
    assert job.exit_code("job-coordinator-0-0") == 3


def test_cancel_lets_everybody_go_at_once(make_job: Callable[..., Job]) -> None:
    job = make_job({"step_seconds": 0.002})
    job.scale(worker(0), server(0))
    job.wait_for_step(3)
    job.service.want([], "cancel")
    assert {job.exit_code(name) for name in job.processes} == {0}
    assert job.service.result is None


def _checkpointed_step(job: Job) -> int:
    manifest, _ = newest_manifest(LocalStorage(checkpoint_directory(job.directory)))
    return manifest.version if manifest else 0
